#include "time/captures.h"

#include "lookup/resolve.h"

bool captures_ask(uintptr_t stream) {
    int status = 0;
    return REAL(cuStreamIsCapturing)((CUstream)stream, &status) == CUDA_SUCCESS && status;
}
