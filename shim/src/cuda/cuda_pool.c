/* Making and ending pools, and the waits after which drivers release unused memory of pools. */
#include "lookup/cards.h"
#include "lookup/resolve.h"
#include "memory/deferred_free.h"
#include "memory/pools.h"
#include "region/enter.h"
#include "time/launch_metering.h"

/*
 * The device to which a pool's memory counts; -1 for host memory. Managed memory may move to the
 * card at any time, wherever its pool is located, so it counts to the current device.
 */
static CUdevice device_of(const CUmemPoolProps *props) {
    CUdevice device = cards_located(&props->location);
    if (device >= 0) return device;
    if (props->type != CU_MEM_ALLOCATION_TYPE_MANAGED) return -1;
    device = 0;
    REAL(cuCtxGetDevice)(&device);
    return device;
}

static void learn(struct regions *regions, CUmemoryPool pool, const CUmemPoolProps *props,
                  int card, CUdevice device) {
    unsigned number = pools_number(regions, pool, card, device);
    if (props->handle_types || props->max_bytes) pools_set_apart(regions, number);
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    struct regions *regions;
    int card = CARD_NONE;
    CUresult result = shim_enter(&regions);
    CUdevice device = props ? device_of(props) : -1;
    if (result == CUDA_SUCCESS && regions && device >= 0) {
        card = cards_of_device(regions, device);
        if (card == CARD_NONE) return cards_refusal(device);
    }
    if (result == CUDA_SUCCESS) result = REAL(cuMemPoolCreate)(pool, props);
    if (result == CUDA_SUCCESS && regions) learn(regions, *pool, props, card, device);
    return result;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult result;
    struct regions *regions = shim_known();
    return regions && pools_destroy(regions, pool, &result) ? result : REAL(cuMemPoolDestroy)(pool);
}

static CUresult after_wait(CUresult result) {
    struct regions *regions = shim_known();
    metering_after_wait();
    if (result != CUDA_SUCCESS || !regions) return result;
    if (pools_are_dirty(regions)) pools_settle(regions);
    deferred_free_settle(regions);
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    return after_wait(REAL(cuMemPoolTrimTo)(pool, keep));
}

/* This also releases the memory of existing graphs, until they are launched again. */
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    return after_wait(REAL(cuDeviceGraphMemTrim)(device));
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    metering_before_wait(stream_credit_name(stream, false));
    return after_wait(REAL(cuStreamSynchronize)(stream));
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    metering_before_wait(stream_credit_name(stream, true));
    return after_wait(REAL(cuStreamSynchronize_ptsz)(stream));
}

EXPORT CUresult cuCtxSynchronize(void) {
    metering_before_wait_for_all();
    return after_wait(REAL(cuCtxSynchronize)());
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    metering_before_wait_in(context);
    return after_wait(REAL(cuCtxSynchronize_v2)(context));
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    metering_before_wait_for_all();
    return after_wait(REAL(cuEventSynchronize)(event));
}
