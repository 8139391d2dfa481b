/*
 * State that belongs to this process alone. It lies in a mapping that a forked child finds zeroed,
 * however the child was made (MADV_WIPEONFORK). All zero means: not attached, nothing known,
 * nothing allocated, no lock taken.
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
#define POOLS_MAX 1023 /* in use at a time; limited by the owner's bits in alloc_table.c */

/* A context, and what it costs on its card. Its number is its index in the table plus one. */
struct process_context {
    uint64_t handle; /* 0: free */
    uint64_t bytes;
    uint64_t limits[3]; /* bytes added by cuCtxSetLimit: stack, printf buffer, heap */
    uint64_t stack_needed; /* bytes that kernels need: the minimum of limits[0] */
    int32_t card, device;
    uint32_t primary, reserved;
};

/*
 * A memory pool. It keeps freed memory, so it is charged for what the driver has reserved for it,
 * and may reserve for allocations in progress.
 */
struct process_pool {
    uint64_t handle; /* CUmemoryPool; GRAPH_POOL + device for a device's graphs; 0: free */
    uint64_t live;    /* bytes in allocations, or that launches of graphs may take */
    uint64_t left;    /* bytes that destroyed graphs may have left allocated */
    uint64_t pending; /* bytes reserved for allocations in progress */
    uint64_t charged; /* bytes, with a version: pools.c */
    int32_t card, device;
    uint32_t destroyed; /* by the program */
    uint32_t dirty;     /* the charge must be compared with the driver's figure */
    uint32_t apart;     /* managed memory may not replace its memory */
    uint32_t users;     /* number of threads that may call the driver with its handle: pools.c */
    uint64_t absent; /* bytes charged for graphs that, as far as is known, are not on the card */
};

/* Small arrays on a card: small_arrays.c. */
struct process_small_arrays {
    uint64_t alive;     /* number of arrays */
    uint64_t born;      /* bytes of all that were made since there was none */
    uint64_t inherited; /* pages taken over from other small allocations since then */
    uint64_t charged;   /* pages charged */
};

/* This process's state of one card. */
struct process_card {
    uint64_t bytes; /* held by this process, kept apart from the shared region */
    uint64_t limit; /* from the last good read of the limits, like the UUID, stored in words */
    uint64_t uuid[MIZAR_UUID_SIZE / 8];
    uint64_t context_bytes; /* from the limits; 0: to be measured */
    uint64_t estimated, estimates_news, estimates_doubted; /* estimates.c */
    uint32_t oversubscribe;
    uint32_t compute_mode, core_share; /* as in the limits */
    uint32_t beat; /* the node agent's heartbeat as last seen, and when it was seen to change */
    uint64_t beat_at;
    uint64_t paid_until, uncharged_ns; /* of this process alone: container_budget.c */
    uint64_t largest_load; /* the most bytes that loaded code took: loads.c */
    uint64_t window, window_at; /* as last seen, and since when there is one */
    uint64_t alone_ns, alone_at; /* recent charge for work of unknown cost: container_budget.c */
    uint64_t pool_grain; /* most bytes by which a pool grew more than requested: pools.c */
    struct mizar_copies *copies; /* where this process counts copies; NULL: not known yet */
    uint64_t window_end, work_end; /* of this process alone: container_budget.c */
    int64_t over;
    struct interval_union moments; /* in which this process had work on the card */
};

struct meter; /* context_meter.c */

/*
 * The order of locks: a thread that holds a lock takes only locks of later lines, and never holds
 * two of the same line. A * marks locks under which the driver may be called. No thread waits for
 * memory (lazy_code_await_look) or for its turn while it holds one; a meter's lock is released for
 * that. All locks are in this process's state but that of dlopen.c, which is waited for by
 * lock_patiently(): the driver, while it is loaded, may call any wrapper or load a library itself.
 *
 *     that of dlopen.c *   loading the driver before the first library of RTLD_DEEPBIND
 *     load_lock *          measuring how much memory code takes; no thread waits for this lock
 *     context_lock *       contexts, while one is made or may be ending
 *     a meter's lock *     work in progress in one context
 *     deferred_lock *      frees that wait for a stream; released during the free itself
 *     vmm_lock             memory by handle
 *     pool_lock *          a pool's number; what a graph's pool is charged but not using
 *     meters_lock          what is announced to other processes for all meters; new meters
 *     small_arrays_lock, import_lock, estimates_lock, costs_lock, attach_lock, a card's moments
 *     refresh_lock         reading the limits again
 */
struct process {
    uint32_t attached; /* set last: this process has the slot */
    uint32_t slot;
    uint32_t attach_lock;
    uint32_t refresh_lock;
    uint32_t limits_known; /* the limits were read successfully at least once */
    uint32_t limits_seq;   /* seq of the last good read */
    uint32_t card_count;
    uint32_t settled_at; /* when dead slots were last searched for (coarse milliseconds) */
    uint32_t segments_used;
    uint32_t context_lock, contexts_used;
    uint32_t pool_lock, pools_used;
    uint32_t pools_dirty; /* at least one pool is dirty */
    uint32_t vmm_lock, deferred_lock, load_lock, small_arrays_lock;
    uint32_t costs_lock;
    struct process_card cards[MIZAR_CARD_MAX];
    int8_t device_card[DEVICES_MAX]; /* by CUDA ordinal: card + 1; -1: none; 0: not known yet */
    struct segment *segments[SEGMENTS_MAX];
    uint64_t *page_segments[PAGE_SEGMENTS_MAX]; /* pages.c */
    struct process_context contexts[CONTEXTS_MAX];
    struct process_pool pools[POOLS_MAX];
    struct process_small_arrays small_arrays[MIZAR_CARD_MAX];
    struct map vmm_handles, vmm_mappings, vmm_keepers;
    struct deferred_free *deferred; /* frees that wait for a stream */
    uint32_t deferred_rounds; /* number of passes that freed deferred memory */
    struct vmm_handle *vmm_exported; /* held by descriptors only */
    struct handle_set *uses;  /* code that was used already */
    struct handle_set *kinds; /* kinds of handles: stacks.c */
    struct meter *meters; /* newest first */
    uint32_t meters_lock;
    uint64_t varied_at;     /* when work of varying cost was last launched */
    uint32_t streams_ended; /* number of streams that have ended */
    uint32_t captures;      /* number of streams being captured */
    uint32_t estimates_lock;
    struct map imports;     /* by number */
    uint64_t imports_made;
    uint32_t import_lock;
};

/* Makes a new, zeroed state in a mapping of its own; NULL if that fails. Drop unmaps it. */
struct process *process_state_new(void);
void process_state_drop(struct process *process);

#endif
