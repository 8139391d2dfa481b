/* Pools as objects, and the waits after which drivers give their unused memory back. */
#include "cards.h"
#include "charge.h"
#include "pools.h"
#include "resolve.h"

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    struct regions *regions;
    int card = CARD_NONE;
    CUresult result = shim_enter(&regions);
    bool device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (result == CUDA_SUCCESS && regions && device) {
        card = cards_of_device(regions, props->location.id);
        if (card == CARD_NONE) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) result = REAL(cuMemPoolCreate)(pool, props);
    if (result == CUDA_SUCCESS && regions) pools_add(regions, *pool, card);
    return result;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    struct regions *regions = shim_known();
    if (result == CUDA_SUCCESS && regions) pools_destroyed(regions, pool);
    return result;
}

static CUresult after_wait(CUresult result) {
    struct regions *regions = shim_known();
    if (result == CUDA_SUCCESS && regions && pools_are_dirty(regions)) pools_settle(regions);
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    return after_wait(REAL(cuMemPoolTrimTo)(pool, keep));
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    return after_wait(REAL(cuStreamSynchronize)(stream));
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return after_wait(REAL(cuStreamSynchronize_ptsz)(stream));
}

EXPORT CUresult cuCtxSynchronize(void) {
    return after_wait(REAL(cuCtxSynchronize)());
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    return after_wait(REAL(cuCtxSynchronize_v2)(context));
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    return after_wait(REAL(cuEventSynchronize)(event));
}
