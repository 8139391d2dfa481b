/*
 * One allocation's way through the shim:
 *
 *     struct charge charge;
 *     CUresult result = charge_current(&charge, bytes);         // reserve
 *     if (result == CUDA_SUCCESS) result = REAL(...)(&pointer); // allocate
 *     return charge_settle(&charge, result, pointer, undo);     // record, or give back
 */
#ifndef MIZAR_CHARGE_H
#define MIZAR_CHARGE_H

#include "base/cuda_api.h"
#include "memory/allocs.h"
#include "region/regions.h"

struct charge {
    struct regions *regions; /* NULL: inert, nothing is counted */
    struct alloc alloc;
    bool reserved;
};

/* Frees what a key stands for, when it cannot be remembered. */
typedef CUresult charge_undo(uint64_t key);

/*
 * Reserves bytes on the current context's card; OUT_OF_MEMORY when the limit does not allow it.
 * charge_array is for arrays and mipmapped arrays, the small ones of which share pages unseen.
 * charge_memory is for what may share a page with other small allocations: a page is reserved, and
 * given back when the address tells that it is charged already.
 */
CUresult charge_memory(struct charge *charge, uint64_t bytes);
CUresult charge_current(struct charge *charge, uint64_t bytes);
CUresult charge_array(struct charge *charge, uint64_t bytes, enum alloc_kind kind);
CUresult charge_device(struct charge *charge, uint64_t bytes, CUdevice device);

/* Reserves nothing: only finds out where the current context is. */
CUresult charge_here(struct charge *charge);

/* The true size is known now. OUT_OF_MEMORY when the difference is not allowed. */
CUresult charge_correct(struct charge *charge, uint64_t bytes);

/*
 * After the driver's `result`: on success remembers what the key costs; on failure gives the
 * reservation back. `undo` frees the object if it cannot be remembered.
 */
CUresult charge_settle(struct charge *charge, CUresult result, uint64_t key, charge_undo *undo);

/* Frees what may not be there, so many bytes. What the driver does not free is charged all the same. */
void charge_free(struct charge *charge, uint64_t bytes, uint64_t key, charge_undo *undo);

/* Gives the reservation back. */
void charge_cancel(struct charge *charge);

/* Around a free: what the key cost, out of the table before the driver may reuse it ... */
void charge_lift(struct charge *charge, uint64_t key);
/* ... and given back when the driver has freed it, or back into the table when it has not. */
CUresult charge_finish(struct charge *charge, CUresult result, uint64_t key);

#endif
