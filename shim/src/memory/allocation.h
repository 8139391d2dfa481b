/*
 * One allocation's way through the shim, from the wrapper's point of view. Whether there is room is
 * decided below: charge.h, memory_ledger.h.
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

/* Frees what a key stands for, when it cannot be remembered. */
typedef CUresult allocation_undo(uint64_t key);

/*
 * Reserves bytes on the current context's card, or on the device; OUT_OF_MEMORY when the limit does not
 * allow it. _memory is for what may share a page with other small allocations: a page is reserved, and
 * given back when the address tells that it is charged already; _whole for what has pages of its own. _array is
 * for arrays and mipmapped arrays, the small ones of which share pages unseen.
 */
CUresult allocation_reserve_memory(struct allocation *allocation, uint64_t bytes);
CUresult allocation_reserve_whole(struct allocation *allocation, uint64_t bytes);
CUresult allocation_reserve_array(struct allocation *allocation, uint64_t bytes, enum alloc_kind kind);
CUresult allocation_reserve_on(struct allocation *allocation, uint64_t bytes, CUdevice device);

/* Reserves nothing: only finds out where the current context is. */
CUresult allocation_locate(struct allocation *allocation);

/* The true size is known now. OUT_OF_MEMORY when the difference is not allowed. */
CUresult allocation_correct(struct allocation *allocation, uint64_t bytes);

/*
 * After the driver's `result`: on success remembers what the key costs; on failure gives the
 * reservation back. `undo` frees the object if it cannot be remembered.
 */
CUresult allocation_settle(struct allocation *allocation, CUresult result, uint64_t key, allocation_undo *undo);

/* Frees what may not be there, so many bytes. What the driver does not free is charged all the same. */
void allocation_free(struct allocation *allocation, uint64_t bytes, uint64_t key, allocation_undo *undo);

/* Gives the reservation back. */
void allocation_cancel(struct allocation *allocation);

/* Around a free: what the key cost, out of the table before the driver may reuse it ... */
void allocation_lift(struct allocation *allocation, uint64_t key);
/* ... and given back when the driver has freed it, or back into the table when it has not. */
CUresult allocation_finish_free(struct allocation *allocation, CUresult result, uint64_t key);

#endif
