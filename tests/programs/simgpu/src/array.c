#include "array.h"

#include "external.h"

#include <stdlib.h>

enum { MAGIC = 0x41525221, MIP_MAGIC = 0x4d495021, LEVELS = 16, ROW = 512 };

struct CUmipmappedArray_st {
    uint32_t magic;
    struct allocation *memory; /* NULL for a sparse array, which has ... */
    struct holding *tiles;     /* ... the memory mapped into its tiles */
    unsigned levels;
    struct CUarray_st level[LEVELS];
};

CUresult array_check(CUarray array) {
    TRY(driver_ready());
    return array && array->magic == MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static uint64_t format_bytes(int format) {
    switch (format) {
    case 0x01:
    case 0x08: return 1; /* 8 bits */
    case 0x02:
    case 0x09:
    case 0x10: return 2; /* 16 bits, half */
    case 0x03:
    case 0x0a:
    case 0x20: return 4; /* 32 bits, float */
    default: return 0;
    }
}

static uint64_t at_least_one(uint64_t value) {
    return value ? value : 1;
}

uint64_t array_layout(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    array->magic = MAGIC;
    array->shape = *shape;
    array->element = format_bytes(shape->Format) * shape->NumChannels;
    array->pitch = round_up(shape->Width * array->element, ROW);
    array->slice = array->pitch * at_least_one(shape->Height);
    if (shape->NumChannels == 3 || shape->NumChannels > 4) return 0;
    return array->slice * at_least_one(shape->Depth);
}

static CUresult take(uint64_t bytes, unsigned flags, struct allocation **memory) {
    CUcontext context;
    TRY(context_current(&context));
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_ARRAY3D_SPARSE) return CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    CUresult result = memory_new(context, MEMORY_DEVICE, bytes, memory);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

static void give(struct allocation *memory, struct holding **tiles) {
    pthread_mutex_lock(&memory_lock);
    if (memory) memory_free(memory);
    holding_end(tiles);
    pthread_mutex_unlock(&memory_lock);
}

API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    TRY(driver_ready());
    if (!array || !shape) return CUDA_ERROR_INVALID_VALUE;
    CUarray made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = take(array_layout(made, shape), shape->Flags, &made->memory);
    if (result) {
        free(made);
        return result;
    }
    if (made->memory) made->base = (char *)(uintptr_t)made->memory->base;
    *array = made;
    return CUDA_SUCCESS;
}

API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape) {
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR whole = {shape->Width,  shape->Height,      0,
                                     shape->Format, shape->NumChannels, 0};
    return cuArray3DCreate_v2(array, &whole);
}

API CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape) {
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR whole = {shape->Width,  shape->Height,      shape->Depth,
                                     shape->Format, shape->NumChannels, shape->Flags};
    return cuArray3DCreate_v2(array, &whole);
}

API CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape) {
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR whole = {shape->Width,  shape->Height,      0,
                                     shape->Format, shape->NumChannels, 0};
    return cuArray3DCreate_v2(array, &whole);
}

API CUresult cuArrayDestroy(CUarray array) {
    TRY(array_check(array));
    if (array->owner) return CUDA_ERROR_INVALID_HANDLE;
    give(array->memory, &array->tiles);
    array->magic = 0;
    free(array);
    return CUDA_SUCCESS;
}

API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array) {
    TRY(array_check(array));
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray array) {
    TRY(array_check(array));
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    *shape = (CUDA_ARRAY_DESCRIPTOR){array->shape.Width, array->shape.Height, array->shape.Format,
                                     array->shape.NumChannels};
    return CUDA_SUCCESS;
}

/* ---- mipmapped arrays: each level is half as large as the previous one ------------------------- */

static size_t half(size_t size) {
    return size > 1 ? size / 2 : size;
}

static uint64_t lay_out_levels(CUmipmappedArray array, CUDA_ARRAY3D_DESCRIPTOR shape) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < array->levels; i++) {
        array->level[i].base = (char *)(uintptr_t)bytes; /* an offset for now; made an address in
                                                            settle_mipmapped() */
        array->level[i].owner = array;
        bytes += array_layout(&array->level[i], &shape);
        shape.Width = half(shape.Width);
        shape.Height = half(shape.Height);
        if (!(shape.Flags & CUDA_ARRAY3D_LAYERED)) shape.Depth = half(shape.Depth);
    }
    return bytes;
}

static CUmipmappedArray new_mipmapped(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels,
                                      uint64_t *bytes) {
    CUmipmappedArray made = calloc(1, sizeof *made);
    if (!made) abort();
    made->magic = MIP_MAGIC;
    made->levels = levels;
    *bytes = lay_out_levels(made, *shape);
    return made;
}

/* Completes or frees the array, by the `result` of allocating its memory. */
static CUresult settle_mipmapped(CUmipmappedArray *array, CUmipmappedArray made, CUresult result) {
    if (result) {
        free(made);
        return result;
    }
    for (unsigned i = 0; i < made->levels; i++) {
        if (made->memory) made->level[i].base += made->memory->base;
        else made->level[i].base = NULL;
    }
    *array = made;
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                    unsigned levels) {
    uint64_t bytes;
    TRY(driver_ready());
    if (!array || !shape || !levels || levels > LEVELS) return CUDA_ERROR_INVALID_VALUE;
    CUmipmappedArray made = new_mipmapped(shape, levels, &bytes);
    return settle_mipmapped(array, made, take(bytes, shape->Flags, &made->memory));
}

API CUresult cuExternalMemoryGetMappedMipmappedArray(
    CUmipmappedArray *array, CUexternalMemory external,
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *shape) {
    uint64_t bytes;
    TRY(driver_ready());
    if (!array || !shape || !shape->numLevels || shape->numLevels > LEVELS)
        return CUDA_ERROR_INVALID_VALUE;
    CUmipmappedArray made = new_mipmapped(&shape->arrayDesc, shape->numLevels, &bytes);
    CUresult result = external_map(external, shape->offset, bytes, &made->memory);
    return settle_mipmapped(array, made, result);
}

static CUresult check_mipmapped(CUmipmappedArray array) {
    TRY(driver_ready());
    return array && array->magic == MIP_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned number) {
    TRY(check_mipmapped(array));
    if (!level || number >= array->levels) return CUDA_ERROR_INVALID_VALUE;
    *level = &array->level[number];
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    TRY(check_mipmapped(array));
    give(array->memory, &array->tiles);
    array->magic = 0;
    free(array);
    return CUDA_SUCCESS;
}

struct holding **array_tiles(int type, void *resource) {
    CUarray array = resource;
    CUmipmappedArray mipmapped = resource;
    if (type != CU_RESOURCE_TYPE_ARRAY)
        return check_mipmapped(mipmapped) || mipmapped->memory ? NULL : &mipmapped->tiles;
    return array_check(array) || array->owner || array->memory ? NULL : &array->tiles;
}
