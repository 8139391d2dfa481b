#include "memory/allocation.h"

#include "base/numbers.h"
#include "lookup/cards.h"
#include "lookup/resolve.h"
#include "memory/alloc_kinds.h"
#include "memory/lent_card.h"
#include "memory/cached_memory.h"
#include "memory/charge.h"
#include "memory/charge_or_reclaim.h"
#include "memory/contexts.h"
#include "memory/estimates.h"
#include "memory/lazy_code.h"
#include "memory/pages.h"
#include "memory/pools.h"
#include "memory/small_arrays.h"
#include "region/enter.h"

static CUresult begin(struct allocation *allocation) {
    *allocation = (struct allocation){0};
    return shim_enter(&allocation->regions);
}

static bool take_share(struct allocation *allocation) {
    struct regions *regions = allocation->regions;
    int card = allocation->alloc.card;
    uint64_t bytes = allocation->alloc.bytes, waited = 0;
    if (small_arrays_add(regions, card, bytes)) return true;
    if (cached_memory_release(regions, card) && small_arrays_add(regions, card, bytes)) return true;
    return lazy_code_await_look(regions, card, PAGE_BYTES, &waited) && small_arrays_add(regions, card, bytes);
}

static CUresult reserve(struct allocation *allocation, int card, uint64_t bytes) {
    allocation->alloc.bytes = charge_size(bytes);
    allocation->alloc.card = card;
    allocation->reserved = charge_or_wait(allocation->regions, card, allocation->alloc.bytes);
    return allocation->reserved ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult allocation_locate(struct allocation *allocation) {
    CUdevice device;
    CUresult result = begin(allocation);
    if (result != CUDA_SUCCESS || !allocation->regions) return result;
    result = REAL(cuCtxGetDevice)(&device);
    if (result != CUDA_SUCCESS) return result;
    allocation->alloc.owner = contexts_current(allocation->regions, device);
    allocation->alloc.card = cards_of_device(allocation->regions, device);
    return CUDA_SUCCESS;
}

CUresult allocation_reserve_located(struct allocation *allocation, uint64_t bytes) {
    return reserve(allocation, allocation->alloc.card, bytes);
}

CUresult allocation_reserve_whole(struct allocation *allocation, uint64_t bytes) {
    CUresult result = allocation_locate(allocation);
    if (result != CUDA_SUCCESS || !allocation->regions) return result;
    return allocation_reserve_located(allocation, bytes);
}

CUresult allocation_reserve_memory(struct allocation *allocation, uint64_t bytes) {
    CUresult result = allocation_locate(allocation);
    if (result != CUDA_SUCCESS || !allocation->regions) return result;
    bool small = bytes <= SMALL_BYTES;
    result = reserve(allocation, allocation->alloc.card, small ? PAGE_BYTES : bytes);
    if (!small) return result;
    allocation->alloc.kind = ALLOC_SMALL;
    allocation->alloc.bytes = bytes;
    return result;
}

CUresult allocation_reserve_array(struct allocation *allocation, uint64_t bytes, enum alloc_kind kind) {
    CUresult result = allocation_locate(allocation);
    allocation->alloc.kind = kind;
    if (result != CUDA_SUCCESS || !allocation->regions) return result;
    allocation->alloc.bytes = bytes;
    if (!alloc_kind_is_small_array(&allocation->alloc))
        return reserve(allocation, allocation->alloc.card, bytes ? larger(bytes, PAGE_BYTES) : 0);
    allocation->reserved = take_share(allocation);
    if (allocation->reserved) lent_card_await(allocation->regions, allocation->alloc.card, PAGE_BYTES);
    return allocation->reserved ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult allocation_reserve_on(struct allocation *allocation, uint64_t bytes, CUdevice device) {
    CUresult result = begin(allocation);
    if (result != CUDA_SUCCESS || !allocation->regions) return result;
    int card = cards_of_device(allocation->regions, device);
    return card == CARD_NONE ? cards_refusal(device) : reserve(allocation, card, bytes);
}

/* The bytes that are reserved at present. */
static uint64_t reserved_bytes(const struct allocation *allocation) {
    return allocation->alloc.kind == ALLOC_SMALL ? PAGE_BYTES : allocation->alloc.bytes;
}

/* A small allocation that turns out larger no longer counts as sharing pages. */
CUresult allocation_correct(struct allocation *allocation, uint64_t bytes) {
    uint64_t before = reserved_bytes(allocation), now = charge_size(bytes);
    if (!allocation->regions || (allocation->alloc.kind == ALLOC_SMALL && bytes <= SMALL_BYTES))
        return CUDA_SUCCESS;
    if (now > before && !charge_or_reclaim(allocation->regions, allocation->alloc.card, now - before))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (now < before) charge_release(allocation->regions, allocation->alloc.card, before - now);
    if (allocation->alloc.kind == ALLOC_SMALL) allocation->alloc.kind = ALLOC_POINTER;
    allocation->alloc.bytes = now;
    allocation->reserved = true;
    return CUDA_SUCCESS;
}

void allocation_cancel(struct allocation *allocation) {
    if (allocation->reserved && allocation->alloc.kind == ALLOC_SMALL)
        charge_release(allocation->regions, allocation->alloc.card, PAGE_BYTES);
    /* An estimate that was not added to the estimates yet. */
    else if (allocation->reserved && alloc_kind_is_estimate(&allocation->alloc))
        charge_release(allocation->regions, allocation->alloc.card, allocation->alloc.bytes);
    else if (allocation->reserved)
        alloc_kind_release(allocation->regions, 0, &allocation->alloc);
    allocation->reserved = false;
}

void allocation_free(struct allocation *allocation, uint64_t bytes, uint64_t key, allocation_undo *undo) {
    if (undo(key) == CUDA_SUCCESS || !allocation->regions) return;
    charge_force(allocation->regions, allocation->alloc.card, larger(charge_size(bytes), PAGE_BYTES));
}

/*
 * Records the allocation. If that fails, frees it; if the driver does not free it, it stays
 * charged.
 */
static CUresult remember(struct allocation *allocation, uint64_t key, allocation_undo *undo) {
    struct regions *regions = allocation->regions;
    bool small = allocation->alloc.kind == ALLOC_SMALL;
    allocation->reserved = false;
    if (alloc_kind_is_estimate(&allocation->alloc))
        estimates_add(regions, allocation->alloc.card, allocation->alloc.bytes);
    alloc_table_prefetch(regions->process, key);
    if (small && !alloc_kind_enter_pages(regions, key, &allocation->alloc))
        allocation_free(allocation, allocation->alloc.bytes, key, undo);
    else if (alloc_table_put(regions->process, key, allocation->alloc))
        return CUDA_SUCCESS;
    else if (undo(key) == CUDA_SUCCESS)
        alloc_kind_release(regions, key, &allocation->alloc);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult allocation_settle(struct allocation *allocation, CUresult result, uint64_t key, allocation_undo *undo) {
    if (!allocation->reserved) return result;
    if (result == CUDA_SUCCESS) return remember(allocation, key, undo);
    allocation_cancel(allocation);
    return result;
}

void allocation_lift(struct allocation *allocation, uint64_t key) {
    *allocation = (struct allocation){.regions = shim_known()};
    if (key && allocation->regions)
        allocation->reserved = alloc_table_take(allocation->regions->process, key, &allocation->alloc);
}

CUresult allocation_finish_free(struct allocation *allocation, CUresult result, uint64_t key) {
    if (!allocation->reserved) return result;
    if (result != CUDA_SUCCESS)
        alloc_table_put(allocation->regions->process, key, allocation->alloc);
    else if (allocation->alloc.kind == ALLOC_POOLED)
        pools_freed(allocation->regions, allocation->alloc.owner, allocation->alloc.bytes);
    else
        alloc_kind_release(allocation->regions, key, &allocation->alloc);
    return result;
}
