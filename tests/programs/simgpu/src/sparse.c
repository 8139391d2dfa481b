/* Sparse arrays: they have a shape, and memory is mapped into them tile by tile. Mappings take
 * effect at once, not in stream order, and a tile can only be unmapped as it was mapped. */
#include "array.h"
#include "stream.h"

static uint64_t mix(uint64_t a, uint64_t b) {
    return (a ^ b) * UINT64_C(0x9e3779b97f4a7c15) + (b >> 7);
}

static uint64_t place_of(const CUarrayMapInfo *info) {
    const unsigned *at = info->subresource.sparseLevel;
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
        return mix(mix(1, info->subresource.miptail.layer), info->subresource.miptail.offset);
    uint64_t place = 0; /* hash of level, layer and three offsets */
    for (int i = 0; i < 5; i++) place = mix(place, at[i]);
    return place;
}

static CUresult map_tile(const CUarrayMapInfo *info, struct holding **tiles) {
    struct physical *memory = physical_of(info->memHandle);
    if (!memory || !memory->on_card || info->offset >= memory->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    holding_remove(tiles, place_of(info)); /* replaces earlier memory */
    holding_add(tiles, place_of(info), memory);
    return CUDA_SUCCESS;
}

static CUresult change(const CUarrayMapInfo *info) {
    struct holding **tiles = array_tiles(info->resourceType, info->resource);
    if (!tiles || info->flags || info->memHandleType) return CUDA_ERROR_INVALID_VALUE;
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP) return map_tile(info, tiles);
    bool done = holding_remove(tiles, place_of(info));
    return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

TWINS(cuMemMapArrayAsync, _ptsz, (CUarrayMapInfo * list, unsigned count, CUstream handle),
      (list, count, handle)) {
    CUstream stream;
    CUresult result = CUDA_SUCCESS;
    TRY(stream_get(handle, &stream));
    if (!list || !count) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    for (unsigned i = 0; i < count && !result; i++) result = change(&list[i]);
    pthread_mutex_unlock(&memory_lock);
    return result;
}
