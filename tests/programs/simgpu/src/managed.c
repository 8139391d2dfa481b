/* Advice about managed memory, which has no effect on a simulated card. */
#include "memory.h"
#include "stream.h"

static CUresult check(CUdeviceptr pointer, size_t bytes) {
    TRY(driver_ready());
    pthread_mutex_lock(&memory_lock);
    bool all = bytes && memory_covers(pointer, bytes);
    pthread_mutex_unlock(&memory_lock);
    return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

TWINS(cuMemPrefetchAsync, _ptsz,
      (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream),
      (pointer, bytes, device, stream)) {
    (void)device, (void)stream;
    return check(pointer, bytes);
}

TWINS(cuMemPrefetchAsync_v2, _ptsz,
      (CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream),
      (pointer, bytes, location, flags, stream)) {
    (void)location, (void)flags, (void)stream;
    return check(pointer, bytes);
}

API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device) {
    (void)advice, (void)device;
    return check(pointer, bytes);
}

API CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation location) {
    (void)advice, (void)location;
    return check(pointer, bytes);
}
