/*
 * Oversubscription: where a card has nothing left although the limit allows more, managed memory
 * stands in. The driver moves it between the card and the node's memory.
 */
#ifndef MIZAR_STAND_IN_H
#define MIZAR_STAND_IN_H

#include "memory/allocation.h"

static inline bool stand_in_allowed(struct regions *regions, int card) {
    return __atomic_load_n(&regions->process->cards[card].oversubscribe, __ATOMIC_RELAXED);
}

/* Whether that result of the driver's calls for it; the charge is for what the driver was asked for. */
static inline bool stand_in_wanted(const struct allocation *allocation, CUresult result) {
    return __builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0) && allocation->reserved &&
           stand_in_allowed(allocation->regions, allocation->alloc.card);
}

CUresult stand_in_allocate(struct allocation *allocation, CUdeviceptr *pointer, size_t bytes);

/* The same for entries whose addresses have 32 bits: OUT_OF_MEMORY where the address has more. */
CUresult stand_in_allocate_v1(struct allocation *allocation, CUdeviceptr_v1 *pointer, size_t bytes);

#endif
