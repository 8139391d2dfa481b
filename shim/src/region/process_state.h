/*
 * What belongs to this process alone. It lives in a mapping that a forked child finds zeroed
 * (MADV_WIPEONFORK, so no matter how the child was made): all zero means "not attached, nothing
 * known, nothing allocated, no lock taken".
 */
#ifndef MIZAR_PROCESS_STATE_H
#define MIZAR_PROCESS_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/interval_union.h"
#include "base/lock.h"
#include "base/map.h"
#include "mizar_regions.h"

#define DEVICES_MAX 64
#define SEGMENTS_MAX 8

struct segment;       /* alloc_table.c */
struct vmm_handle;    /* vmm.c */
struct deferred_free; /* deferred_free.c */
struct handle_set;    /* handle_set.c */

#define PAGE_SEGMENTS_MAX 5
#define CONTEXTS_MAX 256
#define POOLS_MAX 1023 /* in use at a time: what the owner of an allocation has bits for (alloc_table.c) */

/* A context, and what it costs on its card. Its number is its place in the table, plus one. */
struct process_context {
    uint64_t handle; /* 0: free */
    uint64_t bytes;
    uint64_t limits[3]; /* what cuCtxSetLimit added: stack, printf buffer, heap */
    uint64_t stack_needed; /* by kernels: the least of limits[0] */
    int32_t card, device;
    uint32_t primary, reserved;
};

/*
 * A memory pool keeps what was freed: what counts is what the driver has reserved for it, and what
 * it may reserve for allocations that are under way.
 */
struct process_pool {
    uint64_t handle; /* CUmemoryPool; GRAPH_POOL + device for a device's graphs; 0: free */
    uint64_t live;    /* bytes in allocations, or that launches of graphs may take */
    uint64_t left;    /* bytes that graphs which are gone may have left allocated */
    uint64_t pending; /* bytes reserved for allocations that the driver is just making */
    uint64_t charged; /* bytes, with a version: pools.c */
    int32_t card, device;
    uint32_t destroyed; /* by the program */
    uint32_t dirty;     /* something was freed since the last look at the driver's figure */
    uint32_t apart;     /* nothing may stand in for its memory */
    uint32_t users;     /* so many threads may call the driver with its handle now: pools.c */
    uint64_t absent; /* bytes that are charged for graphs, and not there as far as is known */
};

/* Small arrays on a card: small_arrays.c. */
struct process_small_arrays {
    uint64_t alive;     /* how many live */
    uint64_t born;      /* bytes of all that were made since none lived */
    uint64_t inherited; /* pages, from other small allocations, since then */
    uint64_t charged;   /* pages */
};

/* One per card, on cache lines of its own. */
struct process_card {
    uint64_t bytes; /* what this process holds, whatever the shared region says */
    uint64_t limit; /* from the last good reading of the limits; so is its UUID, in whole words */
    uint64_t uuid[MIZAR_UUID_SIZE / 8];
    uint64_t context_bytes; /* from the limits; 0: to be measured */
    uint64_t estimated, estimates_news, estimates_doubted; /* estimates.c */
    uint32_t oversubscribe;
    uint32_t compute_mode, core_share; /* as in the limits */
    uint32_t beat; /* the node agent's, as last seen, and when it had changed */
    uint64_t beat_at;
    uint64_t paid_until, uncharged_ns; /* of this process alone: container_budget.c */
    uint64_t largest_load; /* bytes that code took at most: loads.c */
    uint64_t window, window_at; /* as last seen, and since when it is one */
    uint64_t alone_ns, alone_at; /* charged of late for work not known: container_budget.c */
    uint64_t pool_grain; /* pools grew by so much more than was asked for: pools.c */
    struct mizar_copies *copies; /* where this process counts them; NULL: not known yet */
    uint64_t window_end, work_end; /* of this process alone: container_budget.c */
    int64_t over;
    struct interval_union moments; /* in which this process had work on the card */
};

struct meter; /* context_meter.c */

/*
 * The order of locks: a thread that holds one takes only others of a later line, and two of one line are never held
 * together. A * says that the driver may be called meanwhile. Under none of them does anybody wait for room
 * (lazy_code_await_look), nor for a turn: the meter's lock is let go for that.
 *
 *     load_lock *          held while it is measured what code takes; nobody waits for it
 *     context_lock *       contexts, while one is made or may be ending
 *     a meter's lock *     work that is under way in one context
 *     deferred_lock *      frees that wait for a stream; let go for the free itself
 *     vmm_lock             memory by handle
 *     pool_lock *          a pool's number; what a graph's pool is charged for nothing
 *     meters_lock          what other processes are told of all meters; new meters
 *     small_arrays_lock, import_lock, estimates_lock, costs_lock, attach_lock, a card's moments
 *     refresh_lock         the limits, while they are read again
 */
struct process {
    uint32_t attached; /* set last: slot is ours */
    uint32_t slot;
    uint32_t attach_lock;
    uint32_t refresh_lock;
    uint32_t limits_known; /* a good reading was made */
    uint32_t limits_seq;   /* its seq */
    uint32_t card_count;
    uint32_t settled_at; /* coarse milliseconds of the last look for dead slots */
    uint32_t segments_used;
    uint32_t context_lock, contexts_used;
    uint32_t pool_lock, pools_used;
    uint32_t pools_dirty; /* some pool is */
    uint32_t vmm_lock, deferred_lock, load_lock, small_arrays_lock;
    uint32_t costs_lock;
    struct process_card cards[MIZAR_CARD_MAX];
    int8_t device_card[DEVICES_MAX]; /* by CUDA ordinal: card + 1, -1 for none, 0 not asked yet */
    struct segment *segments[SEGMENTS_MAX];
    uint64_t *page_segments[PAGE_SEGMENTS_MAX]; /* pages.c */
    struct process_context contexts[CONTEXTS_MAX];
    struct process_pool pools[POOLS_MAX];
    struct process_small_arrays small_arrays[MIZAR_CARD_MAX];
    struct map vmm_handles, vmm_mappings, vmm_keepers;
    struct deferred_free *deferred; /* frees that wait for a stream */
    uint32_t deferred_rounds; /* so often somebody freed what was ready */
    struct vmm_handle *vmm_exported; /* nothing but descriptors holds these */
    struct handle_set *uses;  /* of code, for the first time */
    struct handle_set *kinds; /* of handles: stacks.c */
    struct meter *meters; /* the newest first */
    uint32_t meters_lock;
    uint64_t varied_at;     /* when work of varying costs was last launched */
    uint32_t streams_ended; /* so far */
    uint32_t captures;      /* of streams, that are under way */
    uint32_t estimates_lock;
    struct map imports;     /* by their numbers */
    uint64_t imports_made;
    uint32_t import_lock;
};

/* A new one in its own mapping, or NULL. */
struct process *process_state_new(void);
void process_state_drop(struct process *process);

#endif
