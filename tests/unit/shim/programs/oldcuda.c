/* The driver of tests/olddriver.c: CUDA 9 and one card. */
#include <string.h>

#include "base/cuda_api.h"

EXPORT CUresult cuInit(unsigned flags) {
    return (CUresult)flags;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[0] = 0xab;
    return device;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    *pointer = 0x200000;
    return bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = (CUcontext)64;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(LAUNCH_SHAPE, void **extra) {
    (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)parameters, (void)extra;
    return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
