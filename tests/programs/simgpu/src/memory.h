/* Allocations: the whole-page ones and the small ones packed into chunks. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include <pthread.h>

#include "address.h"
#include "context.h"

enum memory_kind {
    MEMORY_DEVICE,
    MEMORY_LOW, /* the same below 4 GiB */
    MEMORY_MANAGED,
    MEMORY_POOL,
    MEMORY_GRAPH,
    MEMORY_IMPORTED,
    MEMORY_EXTERNAL /* mapped from external memory, which counts it */
};

struct allocation {
    struct region region; /* of whole-page allocations; must come first */
    uint64_t base, bytes;
    uint64_t charged; /* on the card, by this allocation alone */
    enum memory_kind kind;
    CUdevice device;
    unsigned card;
    CUcontext context;
    CUmemoryPool pool;         /* MEMORY_POOL: never NULL */
    CUexternalMemory external; /* MEMORY_EXTERNAL: never NULL */
    struct allocation *cached; /* freed into its pool: the next one there */
    bool idle;                 /* freed into its pool; of a graph: not allocated now */
    struct chunk *chunk;       /* where a small one lies, or NULL */
    uint64_t id;
    int share_fd;                    /* backing that other processes may open, or -1 */
    struct allocation *next, **link; /* among all */
};

extern pthread_mutex_t memory_lock;

/* The caller holds memory_lock for all of these. */
CUresult memory_new(CUcontext context, enum memory_kind kind, uint64_t bytes,
                    struct allocation **made);
/* MEMORY_POOL. */
CUresult memory_new_pooled(CUcontext context, CUmemoryPool pool, uint64_t bytes,
                           struct allocation **made);
/* Pages at an address that is right for the kind; 0: no room. */
uint64_t memory_address(enum memory_kind kind, struct region *region, uint64_t bytes);
void memory_free(struct allocation *allocation);
/* The allocation that covers the address, or NULL. */
struct allocation *memory_find(uint64_t address);

/* Is all of [address, address + bytes) device memory that may be copied to and from? */
bool memory_covers(uint64_t address, uint64_t bytes);
/* A graph's memory: an address without memory, until a launch backs it. */
CUresult memory_reserve(CUcontext context, uint64_t bytes, struct allocation **made);
CUresult memory_back(struct allocation *allocation);
void memory_unback(struct allocation *allocation);
/* Every allocation, for those who look for some. */
struct allocation *memory_first(void);

/* Stream-ordered memory (pool.c). These take memory_lock themselves. */
CUresult pool_take(CUcontext context, CUmemoryPool pool, uint64_t bytes, CUdeviceptr *pointer);
void pool_take_back(CUdeviceptr pointer);
/* The allocation goes although its pool does not; memory_lock held. */
void pool_forget(struct allocation *allocation);
/* What the card keeps for the pool; memory_lock held. */
void pool_grow(CUmemoryPool pool, uint64_t bytes);
void pool_shrink(CUmemoryPool pool, uint64_t bytes);
/* After a synchronisation pools give back what exceeds their threshold. */
void pool_trim_all(void);

/* Mappings of reserved addresses (vmm.c); the caller holds memory_lock. */
bool vmm_covers(struct region *region, uint64_t address, uint64_t bytes);

/* Small ones: 512-byte units in chunks of one page, charged by the chunk. */
#define SMALL_BYTES ((uint64_t)1 << 20)
CUresult chunk_place(struct allocation *allocation);
void chunk_remove(struct allocation *allocation);
struct allocation *chunk_find(struct region *region, uint64_t address);

#endif
