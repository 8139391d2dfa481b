/* Arrays and mipmapped arrays. */
#include "lookup/relax.h"
#include "memory/allocation.h"
#include "memory/array_size.h"
#include "memory/vmm.h"

static CUresult undo_array(uint64_t key) {
    return RELAXED(cuArrayDestroy, (CUarray)(uintptr_t)(key ^ alloc_key(ALLOC_ARRAY, NULL)));
}

static CUresult undo_mipmap(uint64_t key) {
    return RELAXED(cuMipmappedArrayDestroy, 
        (CUmipmappedArray)(uintptr_t)(key ^ alloc_key(ALLOC_MIPMAP, NULL)));
}

static CUresult begin(struct allocation *allocation, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    return allocation_reserve_array(allocation, array_bytes(descriptor, 1), ALLOC_ARRAY);
}

static CUresult end(struct allocation *allocation, CUresult result, const CUarray *array) {
    return allocation_settle(allocation, result, array ? alloc_key(ALLOC_ARRAY, *array) : 0, undo_array);
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *given) {
    struct allocation allocation;
    if (!given) return REAL(cuArrayCreate_v2)(array, given);
    CUDA_ARRAY3D_DESCRIPTOR shape = {given->width, given->height, 0,
                                     given->format, given->channels, 0};
    CUresult result = begin(&allocation, &shape);
    if (result == CUDA_SUCCESS) result = REAL(cuArrayCreate_v2)(array, given);
    return end(&allocation, result, array);
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *given) {
    struct allocation allocation;
    if (!given) return REAL(cuArrayCreate)(array, given);
    CUDA_ARRAY3D_DESCRIPTOR shape = {given->width, given->height, 0,
                                     given->format, given->channels, 0};
    CUresult result = begin(&allocation, &shape);
    if (result == CUDA_SUCCESS) result = REAL(cuArrayCreate)(array, given);
    return end(&allocation, result, array);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *given) {
    struct allocation allocation;
    if (!given) return REAL(cuArray3DCreate_v2)(array, given);
    CUresult result = begin(&allocation, given);
    if (result == CUDA_SUCCESS) result = REAL(cuArray3DCreate_v2)(array, given);
    return end(&allocation, result, array);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *given) {
    struct allocation allocation;
    if (!given) return REAL(cuArray3DCreate)(array, given);
    CUDA_ARRAY3D_DESCRIPTOR shape = {given->width, given->height, given->depth,
                                     given->format, given->channels, given->flags};
    CUresult result = begin(&allocation, &shape);
    if (result == CUDA_SUCCESS) result = REAL(cuArray3DCreate)(array, given);
    return end(&allocation, result, array);
}

/* An array that is being destroyed, with its own charge and the memory that was mapped into it. */
struct ending {
    struct allocation allocation;
    struct vmm_keeper *keeper;
    uint64_t key;
};

static struct ending lift(enum alloc_kind kind, const void *array) {
    struct ending ending = {.key = alloc_key(kind, array)};
    allocation_lift(&ending.allocation, array ? ending.key : 0);
    ending.keeper = vmm_lift(ending.allocation.regions, ending.key);
    return ending;
}

static CUresult finish(struct ending *ending, CUresult result) {
    vmm_finish(ending->allocation.regions, ending->key, ending->keeper, result == CUDA_SUCCESS);
    return allocation_finish_free(&ending->allocation, result, ending->key);
}

EXPORT CUresult cuArrayDestroy(CUarray array) {
    struct ending ending = lift(ALLOC_ARRAY, array);
    return finish(&ending, REAL(cuArrayDestroy)(array));
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                       const CUDA_ARRAY3D_DESCRIPTOR *given, unsigned levels) {
    struct allocation allocation;
    if (!given) return REAL(cuMipmappedArrayCreate)(array, given, levels);
    CUresult result = allocation_reserve_array(&allocation, array_bytes(given, levels), ALLOC_MIPMAP);
    if (result == CUDA_SUCCESS) result = REAL(cuMipmappedArrayCreate)(array, given, levels);
    return allocation_settle(&allocation, result, array ? alloc_key(ALLOC_MIPMAP, *array) : 0, undo_mipmap);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct ending ending = lift(ALLOC_MIPMAP, array);
    return finish(&ending, REAL(cuMipmappedArrayDestroy)(array));
}
