#include "memory/charge.h"

#include "base/numbers.h"
#include "lookup/cards.h"
#include "lookup/resolve.h"
#include "memory/account.h"
#include "memory/borrowed.h"
#include "memory/contexts.h"
#include "memory/estimates.h"
#include "memory/kinds.h"
#include "memory/lazy_code.h"
#include "memory/pages.h"
#include "memory/pools.h"
#include "memory/reclaim.h"
#include "memory/reserve.h"
#include "memory/shares.h"
#include "region/enter.h"

static CUresult begin(struct charge *charge) {
    *charge = (struct charge){0};
    return shim_enter(&charge->regions);
}

static bool take_share(struct charge *charge) {
    struct regions *regions = charge->regions;
    int card = charge->alloc.card;
    uint64_t bytes = charge->alloc.bytes, waited = 0;
    if (shares_take(regions, card, bytes)) return true;
    if (reclaim_unused(regions, card) && shares_take(regions, card, bytes)) return true;
    return lazy_code_await_look(regions, card, PAGE_BYTES, &waited) && shares_take(regions, card, bytes);
}

static CUresult reserve(struct charge *charge, int card, uint64_t bytes) {
    charge->alloc.bytes = account_size(bytes);
    charge->alloc.card = card;
    charge->reserved = reserve_patiently(charge->regions, card, charge->alloc.bytes);
    return charge->reserved ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_here(struct charge *charge) {
    CUdevice device;
    CUresult result = begin(charge);
    if (result != CUDA_SUCCESS || !charge->regions) return result;
    result = REAL(cuCtxGetDevice)(&device);
    if (result != CUDA_SUCCESS) return result;
    charge->alloc.owner = contexts_current(charge->regions, device);
    charge->alloc.card = cards_of_device(charge->regions, device);
    return CUDA_SUCCESS;
}

CUresult charge_current(struct charge *charge, uint64_t bytes) {
    CUresult result = charge_here(charge);
    if (result != CUDA_SUCCESS || !charge->regions) return result;
    return reserve(charge, charge->alloc.card, bytes);
}

CUresult charge_memory(struct charge *charge, uint64_t bytes) {
    CUresult result = charge_here(charge);
    if (result != CUDA_SUCCESS || !charge->regions) return result;
    bool small = bytes <= SMALL_BYTES;
    result = reserve(charge, charge->alloc.card, small ? PAGE_BYTES : bytes);
    if (!small) return result;
    charge->alloc.kind = ALLOC_SMALL;
    charge->alloc.bytes = bytes;
    return result;
}

CUresult charge_array(struct charge *charge, uint64_t bytes, enum alloc_kind kind) {
    CUresult result = charge_here(charge);
    charge->alloc.kind = kind;
    if (result != CUDA_SUCCESS || !charge->regions) return result;
    charge->alloc.bytes = bytes;
    if (!kinds_is_share(&charge->alloc))
        return reserve(charge, charge->alloc.card, bytes ? larger(bytes, PAGE_BYTES) : 0);
    charge->reserved = take_share(charge);
    if (charge->reserved) borrowed_await(charge->regions, charge->alloc.card, PAGE_BYTES);
    return charge->reserved ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_device(struct charge *charge, uint64_t bytes, CUdevice device) {
    CUresult result = begin(charge);
    if (result != CUDA_SUCCESS || !charge->regions) return result;
    int card = cards_of_device(charge->regions, device);
    return card == CARD_NONE ? cards_refusal(device) : reserve(charge, card, bytes);
}

/* What is reserved now. */
static uint64_t reserved_bytes(const struct charge *charge) {
    return charge->alloc.kind == ALLOC_SMALL ? PAGE_BYTES : charge->alloc.bytes;
}

/* A small one that turns out larger is charged by itself from here on. */
CUresult charge_correct(struct charge *charge, uint64_t bytes) {
    uint64_t before = reserved_bytes(charge), now = account_size(bytes);
    if (!charge->regions || (charge->alloc.kind == ALLOC_SMALL && bytes <= SMALL_BYTES))
        return CUDA_SUCCESS;
    if (now > before && !reserve_at_once(charge->regions, charge->alloc.card, now - before))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (now < before) account_release(charge->regions, charge->alloc.card, before - now);
    if (charge->alloc.kind == ALLOC_SMALL) charge->alloc.kind = ALLOC_POINTER;
    charge->alloc.bytes = now;
    charge->reserved = true;
    return CUDA_SUCCESS;
}

void charge_cancel(struct charge *charge) {
    if (charge->reserved && charge->alloc.kind == ALLOC_SMALL)
        account_release(charge->regions, charge->alloc.card, PAGE_BYTES);
    else if (charge->reserved && kinds_is_estimate(&charge->alloc)) /* not noted as one yet */
        account_release(charge->regions, charge->alloc.card, charge->alloc.bytes);
    else if (charge->reserved)
        kinds_release(charge->regions, 0, &charge->alloc);
    charge->reserved = false;
}

void charge_free(struct charge *charge, uint64_t bytes, uint64_t key, charge_undo *undo) {
    if (undo(key) == CUDA_SUCCESS || !charge->regions) return;
    account_force(charge->regions, charge->alloc.card, larger(account_size(bytes), PAGE_BYTES));
}

/* What cannot be remembered is freed again; what the driver does not free stays charged. */
static CUresult remember(struct charge *charge, uint64_t key, charge_undo *undo) {
    struct regions *regions = charge->regions;
    bool small = charge->alloc.kind == ALLOC_SMALL;
    charge->reserved = false;
    if (kinds_is_estimate(&charge->alloc))
        estimates_add(regions, charge->alloc.card, charge->alloc.bytes);
    allocs_prefetch(regions->process, key);
    if (small && !kinds_enter_pages(regions, key, &charge->alloc))
        charge_free(charge, charge->alloc.bytes, key, undo);
    else if (allocs_put(regions->process, key, charge->alloc))
        return CUDA_SUCCESS;
    else if (undo(key) == CUDA_SUCCESS)
        kinds_release(regions, key, &charge->alloc);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_settle(struct charge *charge, CUresult result, uint64_t key, charge_undo *undo) {
    if (!charge->reserved) return result;
    if (result == CUDA_SUCCESS) return remember(charge, key, undo);
    charge_cancel(charge);
    return result;
}

void charge_lift(struct charge *charge, uint64_t key) {
    *charge = (struct charge){.regions = shim_known()};
    if (key && charge->regions)
        charge->reserved = allocs_take(charge->regions->process, key, &charge->alloc);
}

CUresult charge_finish(struct charge *charge, CUresult result, uint64_t key) {
    if (!charge->reserved) return result;
    if (result != CUDA_SUCCESS)
        allocs_put(charge->regions->process, key, charge->alloc);
    else if (charge->alloc.kind == ALLOC_POOLED)
        pools_freed(charge->regions, charge->alloc.owner, charge->alloc.bytes);
    else
        kinds_release(charge->regions, key, &charge->alloc);
    return result;
}
