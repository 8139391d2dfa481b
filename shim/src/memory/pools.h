/*
 * Memory pools. A pool keeps memory that was freed to it, so it is charged for the most that it has
 * held since the driver last released memory of it, not for what is allocated at present. Pools are
 * named by numbers; sizes are in bytes.
 */
#ifndef MIZAR_POOLS_H
#define MIZAR_POOLS_H

#include "base/cuda_api.h"
#include "region/regions.h"

/*
 * The number of the pool, which has memory of that card. It is added if it is not known. 0 if the
 * table is full.
 */
unsigned pools_number(struct regions *regions, CUmemoryPool pool, int card, CUdevice device);

/*
 * The same, and the pool's handle stays valid until pools_leave(), even if another thread destroys
 * the pool meanwhile. A thread must enter a pool before it asks for the pool's figures or changes
 * them. pools_enter_known() returns 0 for a pool that is not known.
 */
unsigned pools_enter(struct regions *regions, CUmemoryPool pool, int card, CUdevice device);
unsigned pools_enter_known(struct regions *regions, CUmemoryPool pool);
void pools_leave(struct regions *regions, unsigned number);

/*
 * The number of the pool from which launches of graphs take the memory of their allocation nodes.
 * It never ends.
 */
unsigned pools_graph_number(struct regions *regions, CUdevice device, int card);

/* Enters the device's default pool, on a driver that does not report its handle. */
unsigned pools_enter_nameless(struct regions *regions, CUdevice device, int card);

/*
 * Sets *card to the card of a known pool, CARD_NONE for host memory. Returns false if it is not
 * known.
 */
bool pools_card(struct regions *regions, CUmemoryPool pool, int *card);

/*
 * Marks a pool in which managed memory must not replace card memory, and returns whether it is
 * marked: because other processes share it, or the program has set its maximum size.
 */
void pools_set_apart(struct regions *regions, unsigned number);
bool pools_is_apart(struct regions *regions, unsigned number);

/* Whether the program has destroyed the pool, so that it may not be used any more. */
bool pools_is_gone(struct regions *regions, CUmemoryPool pool);

/*
 * To be called before an allocation of `bytes` from the pool. Reserves and returns what the pool
 * may grow by, even if it has unused memory, since the driver may not use that. Returns 0 if the
 * limit does not allow it. *waited: see lazy_code.h.
 */
uint64_t pools_allocate(struct regions *regions, unsigned number, uint64_t bytes, uint64_t *waited);

/*
 * To be called after the driver has allocated, when the pool's size is known exactly. Returns false
 * if the pool grew beyond the limit; the caller must free the allocation and call pools_cancel().
 */
bool pools_allocated(struct regions *regions, unsigned number, uint64_t bytes, uint64_t reserved);

/*
 * Gives back the reservation of an allocation that failed or was freed again. `grown`: whether the
 * pool may have grown for it.
 */
void pools_cancel(struct regions *regions, unsigned number, uint64_t reserved, bool grown);

/*
 * Notes that `bytes` were freed to the pool. They stay charged until the driver has released them.
 */
void pools_freed(struct regions *regions, unsigned number, uint64_t bytes);

/* Notes the end of a graph for which `bytes` were reserved. Its allocations may still exist. */
void pools_graph_gone(struct regions *regions, unsigned number, uint64_t bytes);

/*
 * For cuMemPoolDestroy. While the driver holds memory for the pool, for live allocations or frees
 * that wait for their stream, the pool is only marked as destroyed, since its memory could not be
 * asked for later. Sets *result to the result for the program. Returns false if the driver must be
 * called instead.
 */
bool pools_destroy(struct regions *regions, CUmemoryPool pool, CUresult *result);

/*
 * To be called after the end of a context on the device: forgets allocations in pools that ended
 * with it.
 */
void pools_context_gone(struct regions *regions, CUdevice device, bool primary);

/*
 * Adapts the charges of dirty pools to the driver's figures. To be called after the program has
 * waited for its work, when drivers release memory, or has trimmed a pool, and before it is told
 * what is free.
 */
void pools_settle(struct regions *regions);

/* Whether any pool is dirty. */
static inline bool pools_are_dirty(struct regions *regions) {
    return __atomic_load_n(&regions->process->pools_dirty, __ATOMIC_RELAXED);
}

/*
 * Whether the pool keeps memory that was freed to it because the program set a release threshold.
 */
bool pools_keeps(struct regions *regions, unsigned number);

/*
 * Makes the driver release up to `bytes` of unused memory of each of this process's pools on the
 * card (POOLS_ALL: all). Returns whether any was released.
 */
#define POOLS_ALL UINT64_MAX
bool pools_shrink(struct regions *regions, int card, uint64_t bytes);

#endif
