/*
 * Physical memory by handle (cuMemCreate). It lives while a handle to it or a mapping of it does,
 * so both are counted; it is charged once.
 */
#ifndef MIZAR_VMM_H
#define MIZAR_VMM_H

#include "charge.h"

/* The handle was created with the charge; or imported, with one of no bytes yet. */
bool vmm_add(struct charge *charge, CUmemGenericAllocationHandle handle);

/* One more reference of a handle that the driver handed out again. */
void vmm_retain(struct regions *regions, CUmemGenericAllocationHandle handle);

void vmm_lock(struct regions *regions);
void vmm_unlock(struct regions *regions);

/* The rest is called with the lock held, around the driver's call. */
void vmm_release(struct regions *regions, CUmemGenericAllocationHandle handle);

/* An imported handle shows its size when it is mapped. False: not allowed. */
bool vmm_may_map(struct regions *regions, CUmemGenericAllocationHandle handle, uint64_t bytes);
void vmm_map(struct regions *regions, CUdeviceptr pointer, uint64_t bytes,
             CUmemGenericAllocationHandle handle);

/* Every mapping in the range. */
void vmm_unmap(struct regions *regions, CUdeviceptr pointer, uint64_t bytes);

#endif
