/* The driver of tests/olddriver.c: CUDA 9 and one card. */
#include <string.h>

#include "cuda_api.h"

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
