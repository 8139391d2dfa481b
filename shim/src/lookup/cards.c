#include "lookup/cards.h"
#include "lookup/relax.h"

#include <stdio.h>

#define DEFAULT_STREAMS 2 /* handles up to this one are the default streams, not pointers */

static void print_uuid(const char *prefix, const CUuuid *uuid, char *text) {
    static const char digits[] = "0123456789abcdef";
    char *end = text + sprintf(text, "%s-", prefix);
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *end++ = '-';
        *end++ = digits[uuid->bytes[i] >> 4];
        *end++ = digits[uuid->bytes[i] & 15];
    }
    *end = 0;
}

/* The second version returns a MIG instance's UUID, the first one that of its card. */
static bool get_uuid(CUdevice device, CUuuid *uuid) {
    return REAL(cuDeviceGetUuid_v2)(uuid, device) == CUDA_SUCCESS ||
           REAL(cuDeviceGetUuid)(uuid, device) == CUDA_SUCCESS;
}

static int look_up(struct regions *regions, const CUuuid *uuid) {
    char text[MIZAR_UUID_SIZE];
    print_uuid("GPU", uuid, text);
    int card = regions_card(regions, text);
    if (card != CARD_NONE) return card;
    print_uuid("MIG", uuid, text);
    return regions_card(regions, text);
}

int cards_of_device(struct regions *regions, CUdevice device) {
    if (device < 0 || device >= DEVICES_MAX) return CARD_NONE;
    int8_t *cached = &regions->process->device_card[device];
    regions_fresh(regions); /* new limits invalidate the cache */
    int8_t known = __atomic_load_n(cached, __ATOMIC_RELAXED);
    if (__builtin_expect(known > 0, 1)) return known - 1;
    if (known < 0) return CARD_NONE;
    const uint32_t *seq = &regions->process->limits_seq;
    uint32_t before = __atomic_load_n(seq, __ATOMIC_RELAXED);
    CUuuid uuid;
    if (!get_uuid(device, &uuid)) return CARD_NONE; /* not cached: it may succeed after cuInit */
    int card = look_up(regions, &uuid);
    /* Having no card is cached only if the limits have not changed meanwhile. */
    if (card != CARD_NONE || __atomic_load_n(seq, __ATOMIC_RELAXED) == before)
        __atomic_store_n(cached, (int8_t)(card == CARD_NONE ? -1 : card + 1), __ATOMIC_RELAXED);
    return card;
}

CUresult cards_refusal(CUdevice device) {
    int unused;
    CUresult result = REAL(cuDeviceGetAttribute)(&unused, CU_MULTIPROCESSOR_COUNT, device);
    return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult cards_current(struct regions *regions, int *card) {
    CUdevice device;
    CUresult result = REAL(cuCtxGetDevice)(&device);
    *card = result == CUDA_SUCCESS ? cards_of_device(regions, device) : CARD_NONE;
    return result;
}

static CUresult device_of_context(CUcontext context, CUdevice *device) {
    CUcontext current = NULL, popped;
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context)
        return REAL(cuCtxGetDevice)(device);
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuCtxGetDevice)(device);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

/* The second version is needed for streams of green contexts, for which the first may fail. */
CUcontext cards_context(CUstream stream) {
    CUcontext context = NULL;
    CUgreenCtx green = NULL;
    if (REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS) return context;
    if (REAL(cuStreamGetCtx_v2)(stream, &context, &green) != CUDA_SUCCESS) return NULL;
    if (green && RELAXED(cuCtxFromGreenCtx, &context, green) != CUDA_SUCCESS) return NULL;
    return context;
}

/* In the location of a locality domain, the lowest byte in place of the id is the device. */
CUdevice cards_located(const CUmemLocation *location) {
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return location->id;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN ? location->id & 0xff : -1;
}

CUresult cards_stream_device(CUstream stream, CUdevice *device) {
    bool has_handle = (uintptr_t)stream > DEFAULT_STREAMS;
    CUcontext context = has_handle ? cards_context(stream) : NULL;
    return context ? device_of_context(context, device) : REAL(cuCtxGetDevice)(device);
}

bool cards_enter(CUcontext context) {
    return context && REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
}

void cards_leave(void) {
    CUcontext popped;
    REAL(cuCtxPopCurrent_v2)(&popped);
}
