/*
 * Physical memory by handle (cuMemCreate). It lives while a handle to it, a mapping of it, or
 * something else of the driver's that holds it does; so these are counted, and it is charged once.
 */
#ifndef MIZAR_VMM_H
#define MIZAR_VMM_H

#include "memory/allocation.h"

/* The handle was created with the charge; or imported, with one of no bytes yet. */
bool vmm_add(struct allocation *allocation, CUmemGenericAllocationHandle handle);

void vmm_lock(struct regions *regions);
void vmm_unlock(struct regions *regions);

/* ---- with the lock held ---- */

/* One more reference of a handle that the driver handed out again. */
void vmm_retain(struct regions *regions, CUmemGenericAllocationHandle handle);

/*
 * The keeper (a multicast object by its handle, a sparse array by its key) holds the memory from
 * now on, until it is gone itself: what it lets go earlier stays charged. False: no memory.
 */
bool vmm_keep(struct regions *regions, uint64_t keeper, CUmemGenericAllocationHandle handle);

/* ---- without the lock ---- */

/*
 * Around a call of the driver's for the handle, which may wait: whatever others do to it meanwhile,
 * it stays known and charged. NULL: nobody knows it.
 */
struct vmm_handle *vmm_begin(struct regions *regions, CUmemGenericAllocationHandle handle);
void vmm_end_release(struct regions *regions, struct vmm_handle *memory, bool done);
/* It was given to others by this descriptor, which holds it as long as it is open; -1: it was not. */
void vmm_end_export(struct regions *regions, struct vmm_handle *memory, int fd);

/* The same where it is mapped. NULL: not allowed. */
struct vmm_mapping *vmm_begin_map(struct regions *regions, CUmemGenericAllocationHandle handle,
                                  uint64_t bytes);
void vmm_end_map(struct regions *regions, CUdeviceptr pointer, struct vmm_mapping *mapping,
                 bool done);

/* Around the end of mappings, for which a driver may wait: every one in the range, out of the table ... */
struct vmm_mapping *vmm_lift_mappings(struct regions *regions, CUdeviceptr pointer, uint64_t bytes);
/* ... and what they held let go, or back into the table. */
void vmm_finish_mappings(struct regions *regions, CUdeviceptr pointer, struct vmm_mapping *first,
                         bool gone);

/* Around the end of a keeper: out of the table before the driver may use its handle again ... */
struct vmm_keeper *vmm_lift(struct regions *regions, uint64_t keeper);
/* ... and what it held let go, or back into the table. */
void vmm_finish(struct regions *regions, uint64_t key, struct vmm_keeper *keeper, bool gone);

/* Gives back what only descriptors held that are closed now. True: there was some. */
bool vmm_settle(struct regions *regions);

#endif
