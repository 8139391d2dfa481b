/* Allocations: the whole-page ones and the small ones packed into chunks. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include <pthread.h>

#include "address.h"
#include "context.h"

enum memory_kind { MEMORY_DEVICE, MEMORY_MANAGED, MEMORY_POOL, MEMORY_IMPORTED };

struct allocation {
    struct region region; /* of whole-page allocations; must come first */
    uint64_t base, bytes;
    uint64_t charged; /* on the card, by this allocation alone */
    enum memory_kind kind;
    CUdevice device;
    unsigned card;
    CUcontext context;
    CUmemoryPool pool;
    struct chunk *chunk; /* where a small one lies, or NULL */
    uint64_t id;
    int share_fd; /* backing that other processes may open, or -1 */
    struct allocation *next, **link; /* in its context's list, or its pool's */
};

extern pthread_mutex_t memory_lock;

/* The caller holds memory_lock for all of these. */
CUresult memory_new(CUcontext context, enum memory_kind kind, uint64_t bytes,
                    struct allocation **made);
void memory_free(struct allocation *allocation);
/* The allocation that covers the address, or NULL. */
struct allocation *memory_find(uint64_t address);

/* Small ones: 512-byte units in chunks of one page, charged by the chunk. */
#define SMALL_BYTES ((uint64_t)1 << 20)
CUresult chunk_place(struct allocation *allocation);
void chunk_remove(struct allocation *allocation);
struct allocation *chunk_find(struct region *region, uint64_t address);

#endif
