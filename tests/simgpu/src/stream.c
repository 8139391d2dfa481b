/* Streams. */
#include "context.h"

TWINS(cuStreamSynchronize, _ptsz, (CUstream stream), (stream)) {
    CUcontext context;
    (void)stream;
    return context_current(&context);
}

API CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize(void) {
    CUcontext context;
    return context_current(&context);
}
