/*
 * Oversubscription: if the card has no memory left although the limit allows more, managed memory
 * is allocated instead (a stand-in). The driver moves it between the card and the node's memory.
 */
#ifndef MIZAR_STAND_IN_H
#define MIZAR_STAND_IN_H

#include "memory/allocation.h"

/* Whether the card is oversubscribed. */
static inline bool stand_in_allowed(struct regions *regions, int card) {
    return __atomic_load_n(&regions->process->cards[card].oversubscribe, __ATOMIC_RELAXED);
}

/*
 * Whether a stand-in is to be allocated after that result of the driver. The charge stays that of
 * the original request.
 */
static inline bool stand_in_wanted(const struct allocation *allocation, CUresult result) {
    return __builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0) && allocation->reserved &&
           stand_in_allowed(allocation->regions, allocation->alloc.card);
}

/*
 * Allocates managed memory of that many bytes, and marks the allocation. Returns the driver's
 * result.
 */
CUresult stand_in_allocate(struct allocation *allocation, CUdeviceptr *pointer, size_t bytes);

/*
 * The same for entry points with 32-bit addresses. Returns OUT_OF_MEMORY if the address does not
 * fit.
 */
CUresult stand_in_allocate_v1(struct allocation *allocation, CUdeviceptr_v1 *pointer, size_t bytes);

#endif
