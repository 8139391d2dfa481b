/*
 * The steps of an allocation in a wrapper. charge.h and memory_ledger.h decide whether it fits the
 * limit.
 *
 *     struct allocation allocation;
 *     CUresult result = allocation_reserve_whole(&allocation, bytes);  // reserve
 *     if (result == CUDA_SUCCESS) result = REAL(...)(&pointer);        // allocate
 *     return allocation_settle(&allocation, result, pointer, undo);    // record, or give back
 */
#ifndef MIZAR_ALLOCATION_H
#define MIZAR_ALLOCATION_H

#include "base/cuda_api.h"
#include "memory/alloc_table.h"
#include "region/regions.h"

struct allocation {
    struct regions *regions; /* NULL: inert, nothing is counted */
    struct alloc alloc;
    bool reserved;
};

/* Frees the object of a key that could not be recorded. */
typedef CUresult allocation_undo(uint64_t key);

/*
 * Reserve bytes on the current context's card, or on the device (_on). Return OUT_OF_MEMORY if the
 * limit does not allow it. _memory: for memory that may share a page with other small allocations;
 * a page is reserved, and given back if the address shows that its page is charged already. _whole:
 * for memory with pages of its own. _array: for arrays and mipmapped arrays, of which small ones
 * share pages, but have no address that shows it.
 */
CUresult allocation_reserve_memory(struct allocation *allocation, uint64_t bytes);
CUresult allocation_reserve_whole(struct allocation *allocation, uint64_t bytes);
CUresult allocation_reserve_array(struct allocation *allocation, uint64_t bytes, enum alloc_kind kind);
CUresult allocation_reserve_on(struct allocation *allocation, uint64_t bytes, CUdevice device);

/* Only finds the card and number of the current context; reserves nothing. */
CUresult allocation_locate(struct allocation *allocation);

/* After allocation_locate(): reserves memory with pages of its own on allocation->alloc.card. */
CUresult allocation_reserve_located(struct allocation *allocation, uint64_t bytes);

/*
 * Changes the reservation to the true size. Returns OUT_OF_MEMORY if the limit does not allow it.
 */
CUresult allocation_correct(struct allocation *allocation, uint64_t bytes);

/*
 * To be called after the driver's `result`: on success records what the key is charged, on failure
 * gives the reservation back. `undo` frees the object if it cannot be recorded. Returns the result
 * for the program.
 */
CUresult allocation_settle(struct allocation *allocation, CUresult result, uint64_t key, allocation_undo *undo);

/*
 * Frees an object of that many bytes that is not allowed. If the driver does not free it, it is
 * charged regardless of the limit.
 */
void allocation_free(struct allocation *allocation, uint64_t bytes, uint64_t key, allocation_undo *undo);

/* Gives the reservation back. */
void allocation_cancel(struct allocation *allocation);

/*
 * To be called before a free: takes the key's entry out of the table, before the driver may reuse
 * the key.
 */
void allocation_lift(struct allocation *allocation, uint64_t key);

/*
 * To be called after a free: gives the charge back if the driver has freed the object, otherwise
 * puts the entry back. Returns `result`.
 */
CUresult allocation_finish_free(struct allocation *allocation, CUresult result, uint64_t key);

#endif
