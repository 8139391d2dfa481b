#include "charge.h"

#include "account.h"
#include "cards.h"
#include "slots.h"

CUresult shim_enter(struct regions **regions) {
    *regions = regions_get();
    if (!*regions) return CUDA_ERROR_SYSTEM_NOT_READY;
    if ((*regions)->mode == REGIONS_INERT) {
        *regions = NULL;
        return CUDA_SUCCESS;
    }
    return slots_attach(*regions) ? CUDA_SUCCESS : CUDA_ERROR_SYSTEM_NOT_READY;
}

static CUresult begin(struct charge *charge) {
    *charge = (struct charge){0};
    return shim_enter(&charge->regions);
}

static CUresult reserve(struct charge *charge, int card, uint64_t bytes) {
    charge->alloc = (struct alloc){.bytes = account_size(bytes), .card = card};
    charge->reserved = account_reserve(charge->regions, card, charge->alloc.bytes);
    return charge->reserved ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_current(struct charge *charge, uint64_t bytes) {
    int card;
    CUresult result = begin(charge);
    if (result != CUDA_SUCCESS || !charge->regions) return result;
    result = cards_current(charge->regions, &card);
    return result == CUDA_SUCCESS ? reserve(charge, card, bytes) : result;
}

CUresult charge_stream(struct charge *charge, uint64_t bytes, CUstream stream) {
    int card;
    CUresult result = begin(charge);
    if (result != CUDA_SUCCESS || !charge->regions) return result;
    result = cards_of_stream(charge->regions, stream, &card);
    return result == CUDA_SUCCESS ? reserve(charge, card, bytes) : result;
}

CUresult charge_correct(struct charge *charge, uint64_t bytes) {
    uint64_t before = charge->alloc.bytes, now = account_size(bytes);
    if (!charge->regions || now == before) return CUDA_SUCCESS;
    if (now > before && !account_reserve(charge->regions, charge->alloc.card, now - before))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (now < before) account_release(charge->regions, charge->alloc.card, before - now);
    charge->alloc.bytes = now;
    return CUDA_SUCCESS;
}

static void give_back(struct charge *charge) {
    if (charge->reserved)
        account_release(charge->regions, charge->alloc.card, charge->alloc.bytes);
}

CUresult charge_settle(struct charge *charge, CUresult result, CUdeviceptr pointer,
                       CUresult (*undo)(CUdeviceptr pointer)) {
    if (!charge->reserved) return result;
    if (result == CUDA_SUCCESS) {
        if (allocs_put(charge->regions->process, pointer, charge->alloc)) return result;
        if (undo(pointer) != CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY; /* stays counted */
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    give_back(charge);
    return result;
}

void charge_lift(struct charge *charge, CUdeviceptr pointer) {
    struct regions *regions = regions_get();
    *charge = (struct charge){0};
    if (!pointer || !regions || regions->mode == REGIONS_INERT) return;
    charge->regions = regions;
    charge->reserved = allocs_take(regions->process, pointer, &charge->alloc);
}

CUresult charge_finish(struct charge *charge, CUresult result, CUdeviceptr pointer) {
    if (!charge->reserved) return result;
    if (result == CUDA_SUCCESS)
        give_back(charge);
    else
        allocs_put(charge->regions->process, pointer, charge->alloc);
    return result;
}
