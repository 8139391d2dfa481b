/* Stream-ordered allocation. */
#include "memory.h"

TWINS(cuMemAllocAsync, _ptsz, (CUdeviceptr *pointer, size_t bytes, CUstream stream),
      (pointer, bytes, stream)) {
    CUcontext context;
    struct allocation *made;
    (void)stream;
    TRY(context_current(&context));
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = memory_new(context, MEMORY_POOL, bytes ? bytes : 1, &made);
    if (!result) *pointer = made->base;
    pthread_mutex_unlock(&memory_lock);
    return result;
}

API CUresult cuMemFree_v2(CUdeviceptr pointer);

TWINS(cuMemFreeAsync, _ptsz, (CUdeviceptr pointer, CUstream stream), (pointer, stream)) {
    (void)stream;
    return cuMemFree_v2(pointer);
}
