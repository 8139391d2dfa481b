/* What the libraries of tests/hidden.c have in common. */
#include "base/cuda_api.h"

CUresult cuCtxSetCurrent(CUcontext context);

int hidden_take(size_t bytes);

/* Takes memory on card 0: the CUDA result. */
static inline int hidden_take_with(__typeof__(&cuInit) init,
                                   __typeof__(&cuDevicePrimaryCtxRetain) retain,
                                   __typeof__(&cuMemAlloc_v2) alloc, size_t bytes) {
    CUcontext context;
    CUdeviceptr pointer;
    CUresult result = init(0);
    if (result == CUDA_SUCCESS) result = retain(&context, 0);
    if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
    return result == CUDA_SUCCESS ? alloc(&pointer, bytes) : result;
}
