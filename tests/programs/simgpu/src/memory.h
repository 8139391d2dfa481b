/* Allocations: large ones have pages of their own, small ones share chunks. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include <pthread.h>

#include "address.h"
#include "context.h"

enum memory_kind {
    MEMORY_DEVICE,
    MEMORY_LOW, /* the same, with an address below 4 GiB */
    MEMORY_MANAGED,
    MEMORY_POOL,
    MEMORY_GRAPH,
    MEMORY_IMPORTED,
    MEMORY_EXTERNAL /* mapped from external memory, which is already counted */
};

struct allocation {
    struct region region; /* for allocations with pages of their own; must come first */
    uint64_t base, bytes;
    uint64_t charged; /* bytes on the card for this allocation alone */
    enum memory_kind kind;
    CUdevice device;
    unsigned card;
    CUcontext context;
    CUmemoryPool pool;         /* MEMORY_POOL: never NULL */
    CUexternalMemory external; /* MEMORY_EXTERNAL: never NULL */
    struct allocation *cached; /* freed to its pool: the next free one */
    bool idle;                 /* freed to its pool; of a graph: not allocated at present */
    struct chunk *chunk;       /* the chunk of a small allocation, else NULL */
    uint64_t id;
    int share_fd;                    /* file that other processes may map, or -1 */
    struct allocation *next, **link; /* in the list of all allocations */
};

extern pthread_mutex_t memory_lock;

/* The caller holds memory_lock for the functions up to memory_first(). */
CUresult memory_new(CUcontext context, enum memory_kind kind, uint64_t bytes,
                    struct allocation **made);
/* The same for MEMORY_POOL. */
CUresult memory_new_pooled(CUcontext context, CUmemoryPool pool, uint64_t bytes,
                           struct allocation **made);
/* Reserves pages with an address as the kind needs it; returns 0 if there is no room. */
uint64_t memory_address(enum memory_kind kind, struct region *region, uint64_t bytes);
void memory_free(struct allocation *allocation);
/* The allocation that contains the address, or NULL. */
struct allocation *memory_find(uint64_t address);

/* Whether all of [address, address + bytes) is device memory that may be copied to and from. */
bool memory_covers(uint64_t address, uint64_t bytes);
/* Memory of a graph: reserves an address without memory; memory_back() adds the memory at a
 * launch. */
CUresult memory_reserve(CUcontext context, uint64_t bytes, struct allocation **made);
CUresult memory_back(struct allocation *allocation);
void memory_unback(struct allocation *allocation);
/* The first of all allocations, linked by `next`. */
struct allocation *memory_first(void);

/* Stream-ordered memory (pool.c). These functions take memory_lock themselves. */
CUresult pool_take(CUcontext context, CUmemoryPool pool, uint64_t bytes, CUdeviceptr *pointer);
void pool_take_back(CUdeviceptr pointer);
/* Removes an allocation that ends before its pool. The caller holds memory_lock. */
void pool_forget(struct allocation *allocation);
/* Counts memory that the card reserves for the pool. The caller holds memory_lock. */
void pool_grow(CUmemoryPool pool, uint64_t bytes);
void pool_shrink(CUmemoryPool pool, uint64_t bytes);
/* Releases unused memory beyond the threshold of each pool, as drivers do after a
 * synchronization. */
void pool_trim_all(void);

/* Mappings of reserved addresses (vmm.c). The caller holds memory_lock. */
bool vmm_covers(struct region *region, uint64_t address, uint64_t bytes);

/* Small allocations: multiples of 512 bytes in chunks of one page. The chunk is charged, not the
 * allocation. */
#define SMALL_BYTES ((uint64_t)1 << 20)
CUresult chunk_place(struct allocation *allocation);
void chunk_remove(struct allocation *allocation);
struct allocation *chunk_find(struct region *region, uint64_t address);

#endif
