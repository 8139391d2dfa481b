/*
 * Contexts: what each costs on its card, and what dies with it. CUDA makes some without being asked
 * through a hooked function; those are noticed when they are first used.
 */
#ifndef MIZAR_CONTEXTS_H
#define MIZAR_CONTEXTS_H

#include "base/cuda_api.h"
#include "region/regions.h"

/*
 * The number of the calling thread's context, which is on that device, or of the primary one where
 * that is a view of it; 0 when there is no room.
 */
unsigned contexts_current(struct regions *regions, CUdevice device);

/* The context of that number; NULL when there is none. */
CUcontext contexts_numbered(struct regions *regions, unsigned number);

/*
 * A part of the shim that keeps something of each context. `made`: one is there, what is known of others may
 * not hold in it. `rest`: it (NULL: any) may be ending, or (false) has not; `gone`: it has, with all that was
 * allocated in it; `returned`: what it cost was given back. The caller holds the lock.
 */
struct context_listener {
    void (*made)(void);
    void (*rest)(struct regions *regions, CUcontext context, bool rests);
    void (*gone)(struct regions *regions, CUcontext context);
    void (*returned)(struct regions *regions, CUdevice device, bool primary);
};

extern const struct context_listener context_listeners[]; /* in their order: cuda/listeners.c */
extern const unsigned context_listener_count;

/* A context that is about to be made, and was made. */
struct context_charge {
    struct regions *regions; /* NULL: inert */
    CUdevice device;
    int card;
    uint64_t bytes;
    int64_t before; /* in use on the card beyond what the container knew of */
    bool measuring;
    bool primary, counted; /* counted: it is the primary one, and was there before */
};

/* Reserves what a context costs, as far as that is known. Holds the lock on success. */
CUresult contexts_begin(struct context_charge *charge, CUdevice device, bool primary);

/*
 * After the driver's `result`: measures, records, lets the lock go. OUT_OF_MEMORY: it cost more than
 * is allowed, and was destroyed again.
 */
CUresult contexts_end(struct context_charge *charge, CUresult result, CUcontext context);

/*
 * Held over a call that may end the context (NULL: any), although the driver may wait for its work
 * there: else a new one, which another thread makes, could have its handle before all that goes by it
 * is forgotten (number, charges, meter); or a primary one, which all threads share, be made again
 * before it is asked whether it is gone. Only who makes a context waits for that, or first uses one of
 * those that were made behind our back. What others look after there rests meanwhile.
 */
void contexts_lock(struct regions *regions, CUcontext context);
void contexts_unlock(struct regions *regions, CUcontext context);

/* The device's primary context; NULL where none is known. */
CUcontext contexts_primary(struct regions *regions, CUdevice device);

/* The context is gone, and with it all that was allocated in it. The caller holds the lock. */
void contexts_gone(struct regions *regions, CUcontext context);

/* After a release or reset: the primary context may be gone. The caller holds the lock. */
void contexts_check_primary(struct regions *regions, CUdevice device);
void contexts_check_primaries(struct regions *regions);

/* A context that costs nothing of its own: what is taken in it is the primary one's. */
void contexts_add_view(struct regions *regions, CUcontext context);

/*
 * cuCtxSetLimit: what the current context's stack, printf buffer or heap take; and `bytes` in place
 * of what that limit took before. False: not allowed.
 */
uint64_t contexts_limit(struct regions *regions, CUdevice device, int limit);
bool contexts_set_limit(struct regions *regions, CUdevice device, int limit, uint64_t bytes);

/* The same for stacks, of which a kernel needs so much: less it is never again. */
bool contexts_need_stacks(struct regions *regions, CUdevice device, uint64_t bytes);

#endif
