/*
 * A CUDA driver and NVML that do next to nothing: calls return at once and are counted, pointers
 * are numbers. What the shim adds can be measured on it, and which entry it called can be seen.
 * `fake` is how a test sets it up and looks inside.
 */
#include "fakecuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

#define MIB ((uint64_t)1 << 20)

struct fake fake = {.devices = 2, .total = 16384 * MIB, .pitch_unit = 512, .next = 1 << 21};

static struct CUctx_st {
    CUdevice device;
} contexts[FAKE_DEVICES];
static struct CUstream_st {
    CUcontext context;
} streams[FAKE_DEVICES];
static __thread CUcontext current;

#define CALLED(symbol) (fake.calls[FAKE_##symbol]++)

/* ---- devices and contexts ---- */

EXPORT CUresult cuInit(unsigned flags) {
    CALLED(cuInit);
    const char *devices = getenv("FAKE_DEVICES");
    if (devices) fake.devices = atoi(devices);
    for (int i = 0; i < FAKE_DEVICES; i++) contexts[i].device = i;
    for (int i = 0; i < FAKE_DEVICES; i++) streams[i].context = &contexts[i];
    return (CUresult)flags;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = fake.devices;
    return CUDA_SUCCESS;
}

/* Card k of the machine; FAKE_ORDER="10" lets device 0 be card 1, as CUDA_VISIBLE_DEVICES does. */
static int card_of(CUdevice device) {
    const char *order = getenv("FAKE_ORDER");
    return order ? order[device] - '0' : device;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[0] = 0xab;
    uuid->bytes[15] = (unsigned char)card_of(device);
    return device < fake.devices ? CUDA_SUCCESS : 101;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current->device;
    return CUDA_SUCCESS;
}

static __thread CUcontext pushed;

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    pushed = current;
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    *context = current;
    current = pushed;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    (void)flags;
    *stream = &streams[current->device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    *context = stream->context;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

static CUresult take(CUdeviceptr *pointer, uint64_t bytes) {
    if (fake.fail) return fake.fail;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *pointer = __atomic_fetch_add(&fake.next, 512, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes) {
    CUdeviceptr wide = 0;
    CALLED(cuMemAlloc);
    CUresult result = take(&wide, bytes);
    *pointer = (CUdeviceptr_v1)wide;
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    CALLED(cuMemAlloc_v2);
    return take(pointer, bytes);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width,
                                unsigned height, unsigned element) {
    CUdeviceptr wide = 0;
    CALLED(cuMemAllocPitch);
    (void)element;
    *pitch = (unsigned)((width + fake.pitch_unit - 1) / fake.pitch_unit * fake.pitch_unit);
    CUresult result = take(&wide, (uint64_t)*pitch * height);
    *pointer = (CUdeviceptr_v1)wide;
    return result;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                   unsigned element) {
    CALLED(cuMemAllocPitch_v2);
    (void)element;
    *pitch = (width + fake.pitch_unit - 1) / fake.pitch_unit * fake.pitch_unit;
    return take(pointer, *pitch * height);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    CALLED(cuMemAllocManaged);
    (void)flags;
    return take(pointer, bytes);
}

#define TAKE_ASYNC(symbol)                                                        \
    EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUstream stream) { \
        CALLED(symbol);                                                           \
        (void)stream;                                                             \
        return take(pointer, bytes);                                              \
    }
#define TAKE_FROM_POOL(symbol)                                                   \
    EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, \
                           CUstream stream) {                                    \
        CALLED(symbol);                                                          \
        (void)pool, (void)stream;                                                \
        return take(pointer, bytes);                                             \
    }
#define GIVE_ASYNC(symbol)                                          \
    EXPORT CUresult symbol(CUdeviceptr pointer, CUstream stream) {  \
        CALLED(symbol);                                             \
        (void)pointer, (void)stream;                                \
        return fake.fail;                                           \
    }
TAKE_ASYNC(cuMemAllocAsync)
TAKE_ASYNC(cuMemAllocAsync_ptsz)
TAKE_FROM_POOL(cuMemAllocFromPoolAsync)
TAKE_FROM_POOL(cuMemAllocFromPoolAsync_ptsz)
GIVE_ASYNC(cuMemFreeAsync)
GIVE_ASYNC(cuMemFreeAsync_ptsz)

EXPORT CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    CALLED(cuMemFree);
    (void)pointer;
    return fake.fail;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CALLED(cuMemFree_v2);
    (void)pointer;
    return fake.fail;
}

/* ---- figures ---- */

EXPORT CUresult cuMemGetInfo(unsigned *free_now, unsigned *total) {
    CALLED(cuMemGetInfo);
    *free_now = *total = UINT32_MAX;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_now, size_t *total) {
    CALLED(cuMemGetInfo_v2);
    *total = fake.total;
    *free_now = fake.total - fake.others;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    CALLED(cuDeviceTotalMem);
    (void)device;
    *bytes = UINT32_MAX;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CALLED(cuDeviceTotalMem_v2);
    (void)device;
    *bytes = fake.total;
    return CUDA_SUCCESS;
}

/* ---- lookups ---- */

static const struct entry {
    const char *base;
    int version;
    int per_thread;
    void *function;
} entries[] = {
#define ENTRY(base, version, per_thread, symbol) {#base, version, per_thread, (void *)&symbol}
    ENTRY(cuInit, 2000, 0, cuInit),
    ENTRY(cuMemAlloc, 2000, 0, cuMemAlloc),
    ENTRY(cuMemAlloc, 3020, 0, cuMemAlloc_v2),
    ENTRY(cuMemAllocPitch, 2000, 0, cuMemAllocPitch),
    ENTRY(cuMemAllocPitch, 3020, 0, cuMemAllocPitch_v2),
    ENTRY(cuMemAllocManaged, 6000, 0, cuMemAllocManaged),
    ENTRY(cuMemAllocAsync, 11020, 0, cuMemAllocAsync),
    ENTRY(cuMemAllocAsync, 11020, 1, cuMemAllocAsync_ptsz),
    ENTRY(cuMemAllocFromPoolAsync, 11020, 0, cuMemAllocFromPoolAsync),
    ENTRY(cuMemAllocFromPoolAsync, 11020, 1, cuMemAllocFromPoolAsync_ptsz),
    ENTRY(cuMemFree, 2000, 0, cuMemFree),
    ENTRY(cuMemFree, 3020, 0, cuMemFree_v2),
    ENTRY(cuMemFreeAsync, 11020, 0, cuMemFreeAsync),
    ENTRY(cuMemFreeAsync, 11020, 1, cuMemFreeAsync_ptsz),
    ENTRY(cuMemGetInfo, 2000, 0, cuMemGetInfo),
    ENTRY(cuMemGetInfo, 3020, 0, cuMemGetInfo_v2),
    ENTRY(cuDeviceTotalMem, 2000, 0, cuDeviceTotalMem),
    ENTRY(cuDeviceTotalMem, 3020, 0, cuDeviceTotalMem_v2),
    ENTRY(cuDeviceGetCount, 2000, 0, cuDeviceGetCount),
    ENTRY(cuDevicePrimaryCtxRetain, 7000, 0, cuDevicePrimaryCtxRetain),
    ENTRY(cuCtxSetCurrent, 4000, 0, cuCtxSetCurrent),
    ENTRY(cuStreamCreate, 2000, 0, cuStreamCreate),
    ENTRY(cuGetProcAddress, 11030, 0, cuGetProcAddress),
    ENTRY(cuGetProcAddress, 12000, 0, cuGetProcAddress_v2),
};

static CUresult find(const char *name, void **function, int version, uint64_t flags) {
    int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct entry *best = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const struct entry *entry = &entries[i];
        if (strcmp(entry->base, name) || entry->version > version || entry->per_thread > per_thread)
            continue;
        if (!best || entry->version >= best->version) best = entry;
    }
    *function = best ? best->function : NULL;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    CALLED(cuGetProcAddress);
    return find(name, function, version, flags);
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                    int *status) {
    CALLED(cuGetProcAddress_v2);
    CUresult result = find(name, function, version, flags);
    if (status) *status = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}
