/*
 * Memory pools. A pool keeps what was freed to it, so it is charged for the most it held since the
 * driver last gave memory of it back, not for what is allocated just now.
 */
#ifndef MIZAR_POOLS_H
#define MIZAR_POOLS_H

#include "base/cuda_api.h"
#include "region/regions.h"

/* The number of that pool, which gives memory of the card; 0 when the table is full. */
unsigned pools_number(struct regions *regions, CUmemoryPool pool, int card, CUdevice device);

/*
 * The same; and until pools_leave() its handle is good, also if another thread destroys the pool
 * meanwhile. A thread that asks for the pool's figures, or changes them, has entered it.
 */
unsigned pools_enter(struct regions *regions, CUmemoryPool pool, int card, CUdevice device);
unsigned pools_enter_known(struct regions *regions, CUmemoryPool pool); /* 0: never heard of it */
void pools_leave(struct regions *regions, unsigned number);

/* The pool from which launches of graphs take the memory of their allocation nodes. Never ends. */
unsigned pools_graph_number(struct regions *regions, CUdevice device, int card);

/* The device's own pool, on a driver that does not name it; as pools_enter(). */
unsigned pools_enter_nameless(struct regions *regions, CUdevice device, int card);

/* The card of a pool that has a number; CARD_NONE for host memory. False: never heard of it. */
bool pools_card(struct regions *regions, CUmemoryPool pool, int *card);

/* Its memory has to be its own: other processes share it, or the program said how much it may be. */
void pools_set_apart(struct regions *regions, unsigned number);
bool pools_is_apart(struct regions *regions, unsigned number);

/* The program has destroyed it, so it may not be used any more. */
bool pools_is_gone(struct regions *regions, CUmemoryPool pool);

/*
 * bytes more are wanted from the pool. Reserves what it may grow by, and returns that: also where it
 * could serve from what it keeps, since nobody tells whether it will. 0: not allowed. *waited: lazy_code.h.
 */
uint64_t pools_allocate(struct regions *regions, unsigned number, uint64_t bytes, uint64_t *waited);

/*
 * The driver has done it: what the pool takes now is known exactly. False: it grew, and may not;
 * the caller frees the allocation and cancels.
 */
bool pools_allocated(struct regions *regions, unsigned number, uint64_t bytes, uint64_t reserved);

/* It did not come to an allocation (any more); `grown`: the pool may have grown for it. */
void pools_cancel(struct regions *regions, unsigned number, uint64_t reserved, bool grown);

/* bytes were freed to the pool; the pool keeps them until the driver says otherwise. */
void pools_freed(struct regions *regions, unsigned number, uint64_t bytes);

/* A graph is gone for which so much was reserved; what it allocated, it may not have freed. */
void pools_graph_gone(struct regions *regions, unsigned number, uint64_t bytes);

/*
 * cuMemPoolDestroy. While the driver holds memory for the pool, for allocations that live or frees
 * that wait for their stream, the pool is only retired, since nobody could tell later what it holds.
 * False: that is the driver's to answer.
 */
bool pools_destroy(struct regions *regions, CUmemoryPool pool, CUresult *result);

/* A context on the device is gone, with all that lived there: perhaps also in pools. */
void pools_context_gone(struct regions *regions, CUdevice device, bool primary);

/*
 * After the program waited for its work (drivers give memory back then) or trimmed a pool; before it
 * is told what is free.
 */
void pools_settle(struct regions *regions);
static inline bool pools_are_dirty(struct regions *regions) {
    return __atomic_load_n(&regions->process->pools_dirty, __ATOMIC_RELAXED);
}

/* Whether the pool holds what was freed to it, and was told to (by a release threshold). */
bool pools_keeps(struct regions *regions, unsigned number);

/*
 * Asks the driver for so many bytes of what each of this process's pools on the card holds unused.
 * True: there was some.
 */
#define POOLS_ALL UINT64_MAX
bool pools_shrink(struct regions *regions, int card, uint64_t bytes);

#endif
