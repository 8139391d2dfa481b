/*
 * Physical memory by handle (cuMemCreate). It exists while there is a handle to it, a mapping of
 * it, or another driver object that keeps it. These are counted, and the memory is charged once.
 */
#ifndef MIZAR_VMM_H
#define MIZAR_VMM_H

#include "base/cuda_api.h"
#include "memory/alloc_table.h"
#include "region/regions.h"

/*
 * Adds a handle that was created, with its charge, or imported, with no bytes charged yet. Returns
 * false if there is no memory.
 */
bool vmm_add(struct regions *regions, const struct alloc *alloc, CUmemGenericAllocationHandle handle);

void vmm_lock(struct regions *regions);
void vmm_unlock(struct regions *regions);

/* ---- with the lock held ---- */

/* Adds a reference to a handle that the driver has returned again. */
void vmm_retain(struct regions *regions, CUmemGenericAllocationHandle handle);

/*
 * Notes that the keeper (a multicast object by its handle, or a sparse array by its key) keeps the
 * memory. The memory stays charged until the keeper is gone, even if the keeper releases it
 * earlier. Returns false if there is no memory.
 */
bool vmm_keep(struct regions *regions, uint64_t keeper, CUmemGenericAllocationHandle handle);

/* ---- without the lock ---- */

/*
 * To be called before and after a call of the driver for the handle, which may wait. The memory
 * stays known and charged meanwhile, whatever other threads do. vmm_begin() returns NULL if it is
 * not known, which the functions for the end accept. `done`: whether the driver released the
 * handle.
 */
struct vmm_handle *vmm_begin(struct regions *regions, CUmemGenericAllocationHandle handle);
void vmm_end_release(struct regions *regions, struct vmm_handle *memory, bool done);

/*
 * After an export. `fd`: the exported descriptor, which keeps the memory while it is open; -1: the
 * call failed.
 */
void vmm_end_export(struct regions *regions, struct vmm_handle *memory, int fd);

/*
 * The same for a call that maps `bytes` of the memory. vmm_begin_map() returns NULL if the limit
 * does not allow it or there is no memory. `done`: whether the driver mapped it.
 */
struct vmm_mapping *vmm_begin_map(struct regions *regions, CUmemGenericAllocationHandle handle,
                                  uint64_t bytes);
void vmm_end_map(struct regions *regions, CUdeviceptr pointer, struct vmm_mapping *mapping,
                 bool done);

/*
 * To be called before mappings are unmapped, for which the driver may wait: takes all mappings of
 * the range out of the table. Returns the first, with the others linked to it.
 */
struct vmm_mapping *vmm_lift_mappings(struct regions *regions, CUdeviceptr pointer, uint64_t bytes);

/*
 * To be called after that: releases what the mappings held if they are `gone`, or puts them back.
 */
void vmm_finish_mappings(struct regions *regions, CUdeviceptr pointer, struct vmm_mapping *first,
                         bool gone);

/*
 * To be called before a keeper is destroyed: takes it out of the table, before the driver may reuse
 * its handle.
 */
struct vmm_keeper *vmm_lift(struct regions *regions, uint64_t keeper);

/* To be called after that: releases what the keeper kept if it is `gone`, or puts it back. */
void vmm_finish(struct regions *regions, uint64_t key, struct vmm_keeper *keeper, bool gone);

/*
 * Gives back memory that only descriptors held which are closed now. Returns whether there was any.
 */
bool vmm_settle(struct regions *regions);

#endif
