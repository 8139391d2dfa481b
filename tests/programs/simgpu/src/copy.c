#include "copy.h"

#include "array.h"
#include "capture.h"
#include "host.h"

static uint64_t at_least_one(uint64_t value) {
    return value ? value : 1;
}

/* Number of bytes from the first to the last one in the box. */
static uint64_t span(const struct side *side, const CUDA_MEMCPY3D *copy) {
    return copy->WidthInBytes + (copy->Height - 1) * side->pitch + (copy->Depth - 1) * side->slice;
}

static void host_side(struct side *side, void *base) {
    side->base = base;
    side->pageable = !host_find(base);
}

static CUresult array_side(struct side *side, CUarray array) {
    TRY(array_check(array));
    if (!array->base) return CUDA_ERROR_NOT_SUPPORTED; /* data in tiles is not simulated */
    *side = (struct side){array->base, array->pitch, array->slice, true, false};
    return CUDA_SUCCESS;
}

/* A unified address is a device address if device memory lies there, otherwise a host address. */
static CUresult linear_side(struct side *side, uint64_t address, bool unified,
                            const CUDA_MEMCPY3D *copy) {
    pthread_mutex_lock(&memory_lock);
    bool device = memory_covers(address, 1), all = memory_covers(address, span(side, copy));
    pthread_mutex_unlock(&memory_lock);
    side->base = (char *)(uintptr_t)address;
    side->device = device;
    if (device) return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (!unified && !host_find(side->base)) return CUDA_ERROR_INVALID_VALUE;
    if (!address) return CUDA_ERROR_INVALID_VALUE;
    side->pageable = !host_find(side->base);
    return CUDA_SUCCESS;
}

static CUresult resolve(const CUDA_MEMCPY3D_SIDE *from, const CUDA_MEMCPY3D *copy,
                        struct side *side) {
    *side = (struct side){.pitch = from->pitch ? from->pitch : copy->WidthInBytes};
    side->slice = side->pitch * at_least_one(from->height ? from->height : copy->Height);
    uint64_t offset = from->xInBytes + from->y * side->pitch + from->z * side->slice;
    switch (from->memoryType) {
    case CU_MEMORYTYPE_HOST:
        if (!from->host) return CUDA_ERROR_INVALID_VALUE;
        host_side(side, (char *)from->host + offset);
        return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        return linear_side(side, from->device + offset, from->memoryType == CU_MEMORYTYPE_UNIFIED,
                           copy);
    case CU_MEMORYTYPE_ARRAY:
        TRY(array_side(side, from->array));
        side->base += from->xInBytes + from->y * side->pitch + from->z * side->slice;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static enum copy_engine engine_of(const struct side *to, const struct side *from) {
    if (to->device) return from->device ? ENGINE_WITHIN : ENGINE_TO_CARD;
    return ENGINE_FROM_CARD;
}

CUresult copy_work(const CUDA_MEMCPY3D *copy, struct work *work, bool *pageable) {
    struct side to, from;
    TRY(driver_ready());
    TRY(resolve(&copy->dst, copy, &to));
    TRY(resolve(&copy->src, copy, &from));
    if (pageable) *pageable = to.pageable || from.pageable;
    *work = (struct work){.kind = WORK_COPY};
    work->copy.engine = engine_of(&to, &from);
    work->copy.box = (struct box){
        .target = to.base,
        .source = from.base,
        .target_pitch = to.pitch,
        .target_slice = to.slice,
        .source_pitch = from.pitch,
        .source_slice = from.slice,
        .width = copy->WidthInBytes,
        .height = copy->Height,
        .depth = copy->Depth,
    };
    return CUDA_SUCCESS;
}

/* Like the real driver, returns only after a copy from or to pageable memory is done. */
CUresult copy_do(const CUDA_MEMCPY3D *copy, CUstream handle, bool wait) {
    CUstream stream;
    struct work work;
    bool pageable;
    TRY(stream_get(handle, &stream));
    if (!copy->WidthInBytes || !copy->Height || !copy->Depth) return CUDA_SUCCESS;
    TRY(copy_work(copy, &work, &pageable));
    if (wait && stream->capture) return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    TRY(stream_add(stream, work));
    bool inside = work.copy.engine == ENGINE_WITHIN;
    return (wait && !inside) || (pageable && !stream->capture) ? engine_wait_stream(stream)
                                                               : CUDA_SUCCESS;
}
