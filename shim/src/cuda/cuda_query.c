/*
 * cuMemGetInfo and cuDeviceTotalMem, which return the container's limit in place of the card's
 * size.
 */
#include "lookup/cards.h"
#include "lookup/resolve.h"
#include "memory/memory_info.h"
#include "memory/pools.h"
#include "region/enter.h"

/*
 * Updates the charges of pools, since the driver may have released memory that was freed to them.
 */
static void settle_pools(void) {
    struct regions *regions = shim_known();
    if (regions && pools_are_dirty(regions)) pools_settle(regions);
}

/* Replaces the driver's figures by the container's. */
static CUresult limit_info(uint64_t *free, uint64_t *total) {
    struct regions *regions;
    int card;
    CUresult result = shim_enter(&regions);
    if (result != CUDA_SUCCESS || !regions) return result;
    result = cards_current(regions, &card);
    if (result != CUDA_SUCCESS) return result;
    struct memory_info answer = memory_info(regions, card, *total, *free);
    *free = answer.free;
    *total = answer.total;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    uint64_t free_now, total_now;
    settle_pools();
    CUresult result = REAL(cuMemGetInfo_v2)(free, total);
    if (result != CUDA_SUCCESS || !free || !total) return result;
    free_now = *free;
    total_now = *total;
    result = limit_info(&free_now, &total_now);
    *free = free_now;
    *total = total_now;
    return result;
}

static unsigned clamp(uint64_t bytes) {
    return bytes < UINT32_MAX ? (unsigned)bytes : UINT32_MAX;
}

EXPORT CUresult cuMemGetInfo(unsigned *free, unsigned *total) {
    settle_pools();
    CUresult result = REAL(cuMemGetInfo)(free, total);
    if (result != CUDA_SUCCESS || !free || !total) return result;
    uint64_t free_now = *free, total_now = *total;
    result = limit_info(&free_now, &total_now);
    *free = clamp(free_now);
    *total = clamp(total_now);
    return result;
}

static CUresult limit_total(uint64_t *total, CUdevice device) {
    struct regions *regions;
    CUresult result = shim_enter(&regions);
    if (result != CUDA_SUCCESS || !regions) return result;
    *total = memory_info(regions, cards_of_device(regions, device), *total, *total).total;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result != CUDA_SUCCESS || !bytes) return result;
    uint64_t total = *bytes;
    result = limit_total(&total, device);
    *bytes = total;
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
    if (result != CUDA_SUCCESS || !bytes) return result;
    uint64_t total = *bytes;
    result = limit_total(&total, device);
    *bytes = clamp(total);
    return result;
}
