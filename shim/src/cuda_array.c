/* Arrays and mipmapped arrays. */
#include "arrays.h"
#include "charge.h"
#include "resolve.h"

static CUresult undo_array(uint64_t key) {
    return REAL(cuArrayDestroy)((CUarray)(uintptr_t)(key ^ alloc_key(ALLOC_ARRAY, NULL)));
}

static CUresult undo_mipmap(uint64_t key) {
    return REAL(cuMipmappedArrayDestroy)(
        (CUmipmappedArray)(uintptr_t)(key ^ alloc_key(ALLOC_MIPMAP, NULL)));
}

static CUresult begin(struct charge *charge, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                      unsigned levels) {
    CUresult result = charge_current(charge, arrays_bytes(descriptor, levels));
    charge->alloc.kind = ALLOC_ARRAY;
    return result;
}

static CUresult end(struct charge *charge, CUresult result, const CUarray *array) {
    return charge_settle(charge, result, array ? alloc_key(ALLOC_ARRAY, *array) : 0, undo_array);
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *given) {
    struct charge charge;
    if (!given) return REAL(cuArrayCreate_v2)(array, given);
    CUDA_ARRAY3D_DESCRIPTOR shape = {given->width, given->height, 0,
                                     given->format, given->channels, 0};
    CUresult result = begin(&charge, &shape, 1);
    if (result == CUDA_SUCCESS) result = REAL(cuArrayCreate_v2)(array, given);
    return end(&charge, result, array);
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *given) {
    struct charge charge;
    if (!given) return REAL(cuArrayCreate)(array, given);
    CUDA_ARRAY3D_DESCRIPTOR shape = {given->width, given->height, 0,
                                     given->format, given->channels, 0};
    CUresult result = begin(&charge, &shape, 1);
    if (result == CUDA_SUCCESS) result = REAL(cuArrayCreate)(array, given);
    return end(&charge, result, array);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *given) {
    struct charge charge;
    if (!given) return REAL(cuArray3DCreate_v2)(array, given);
    CUresult result = begin(&charge, given, 1);
    if (result == CUDA_SUCCESS) result = REAL(cuArray3DCreate_v2)(array, given);
    return end(&charge, result, array);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *given) {
    struct charge charge;
    if (!given) return REAL(cuArray3DCreate)(array, given);
    CUDA_ARRAY3D_DESCRIPTOR shape = {given->width, given->height, given->depth,
                                     given->format, given->channels, given->flags};
    CUresult result = begin(&charge, &shape, 1);
    if (result == CUDA_SUCCESS) result = REAL(cuArray3DCreate)(array, given);
    return end(&charge, result, array);
}

EXPORT CUresult cuArrayDestroy(CUarray array) {
    struct charge charge;
    uint64_t key = alloc_key(ALLOC_ARRAY, array);
    charge_lift(&charge, array ? key : 0);
    return charge_finish(&charge, REAL(cuArrayDestroy)(array), key);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                       const CUDA_ARRAY3D_DESCRIPTOR *given, unsigned levels) {
    struct charge charge;
    if (!given) return REAL(cuMipmappedArrayCreate)(array, given, levels);
    CUresult result = begin(&charge, given, levels);
    charge.alloc.kind = ALLOC_MIPMAP;
    if (result == CUDA_SUCCESS) result = REAL(cuMipmappedArrayCreate)(array, given, levels);
    return charge_settle(&charge, result, array ? alloc_key(ALLOC_MIPMAP, *array) : 0, undo_mipmap);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct charge charge;
    uint64_t key = alloc_key(ALLOC_MIPMAP, array);
    charge_lift(&charge, array ? key : 0);
    return charge_finish(&charge, REAL(cuMipmappedArrayDestroy)(array), key);
}
