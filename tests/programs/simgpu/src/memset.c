/* The entry points that fill memory. */
#include "copy.h"
#include "memory.h"

CUresult set_work(const CUDA_MEMSET_NODE_PARAMS *set, struct work *work) {
    unsigned element = set->elementSize;
    if (element != 1 && element != 2 && element != 4) return CUDA_ERROR_INVALID_VALUE;
    uint64_t row = set->width * element, pitch = set->height > 1 ? set->pitch : row;
    if (pitch < row || set->dst % element) return CUDA_ERROR_INVALID_VALUE;
    *work = (struct work){.kind = WORK_COPY};
    work->copy.engine = ENGINE_WITHIN;
    work->copy.box = (struct box){
        .target = (char *)(uintptr_t)set->dst,
        .target_pitch = pitch,
        .width = row,
        .height = set->height,
        .depth = 1,
        .pattern = set->value,
        .pattern_bytes = element,
    };
    pthread_mutex_lock(&memory_lock);
    bool all = memory_covers(set->dst, row + (set->height - 1) * pitch);
    pthread_mutex_unlock(&memory_lock);
    return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width,
                     size_t height, CUstream handle) {
    CUDA_MEMSET_NODE_PARAMS set = {to, pitch, value, element, width, height};
    struct work work;
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!width || !height) return CUDA_SUCCESS;
    TRY(set_work(&set, &work));
    return stream_add(stream, work);
}

#define FILL(bits, type)                                                                          \
    TWINS(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr to, type value, size_t count),                \
          (to, value, count)) {                                                                   \
        return fill(to, 0, value, bits / 8, count, 1, NULL);                                      \
    }                                                                                             \
    TWINS(cuMemsetD##bits##Async, _ptsz,                                                          \
          (CUdeviceptr to, type value, size_t count, CUstream stream),                            \
          (to, value, count, stream)) {                                                           \
        return fill(to, 0, value, bits / 8, count, 1, stream);                                    \
    }                                                                                             \
    TWINS(cuMemsetD2D##bits##_v2, _ptds,                                                          \
          (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),                \
          (to, pitch, value, width, height)) {                                                    \
        return fill(to, pitch, value, bits / 8, width, height, NULL);                             \
    }                                                                                             \
    TWINS(                                                                                        \
        cuMemsetD2D##bits##Async, _ptsz,                                                          \
        (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), \
        (to, pitch, value, width, height, stream)) {                                              \
        return fill(to, pitch, value, bits / 8, width, height, stream);                           \
    }

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)
