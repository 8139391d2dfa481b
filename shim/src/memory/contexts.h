/*
 * Contexts: what each costs on its card, and what is freed when it ends. CUDA makes some contexts
 * without a call of a hooked function; these are found when they are first used.
 */
#ifndef MIZAR_CONTEXTS_H
#define MIZAR_CONTEXTS_H

#include "base/cuda_api.h"
#include "region/regions.h"

/*
 * The number of the calling thread's context, which is on that device; for a view of the primary
 * context, the number of the primary one. 0 if there is no current context or the table is full.
 */
unsigned contexts_current(struct regions *regions, CUdevice device);

/* The context with that number; NULL if there is none. */
CUcontext contexts_numbered(struct regions *regions, unsigned number);

/*
 * A part of the shim that keeps state for contexts. `made`: a context was made, in which costs
 * learned in others may not hold. `rest`: the context (NULL: any) may be ending, or with false, is
 * not ending any more. `gone`: it has ended, with all that was allocated in it. `returned`: its
 * charge was given back. The caller holds the lock.
 */
struct context_listener {
    void (*made)(void);
    void (*rest)(struct regions *regions, CUcontext context, bool rests);
    void (*gone)(struct regions *regions, CUcontext context);
    void (*returned)(struct regions *regions, CUdevice device, bool primary);
};

/* In the order of their calls: cuda/listeners.c. */
extern const struct context_listener context_listeners[];
extern const unsigned context_listener_count;

/* The charge of a context that is being made. */
struct context_charge {
    struct regions *regions; /* NULL: inert */
    CUdevice device;
    int card;
    uint64_t bytes;
    int64_t before; /* bytes in use on the card beyond the container's account */
    bool measuring;
    bool primary, counted; /* counted: it is the primary one, which existed already */
};

/*
 * Reserves the cost of a context, as far as it is known. On success the caller holds the lock.
 * Returns OUT_OF_MEMORY if the limit does not allow it.
 */
CUresult contexts_begin(struct context_charge *charge, CUdevice device, bool primary);

/*
 * To be called after the driver's `result`: measures and records the context, and releases the
 * lock. Returns OUT_OF_MEMORY if it cost more than is allowed; it was destroyed then, if possible.
 */
CUresult contexts_end(struct context_charge *charge, CUresult result, CUcontext context);

/*
 * The lock to hold during a call that may end the context (NULL: any), although the driver may wait
 * for the context's work in that call. Without it, another thread could make a new context that
 * gets the same handle before all state of the old one (number, charges, meter) is forgotten, or
 * make a primary context again before it is checked whether it has ended. Other threads wait for
 * the lock only if they make a context, or first use one that was made without a hooked function.
 * Listeners are told by `rest` not to use the context meanwhile.
 */
void contexts_lock(struct regions *regions, CUcontext context);
void contexts_unlock(struct regions *regions, CUcontext context);

/* The device's primary context; NULL if none is known. */
CUcontext contexts_primary(struct regions *regions, CUdevice device);

/*
 * Gives back the charges of a context that has ended, and of all that was allocated in it. The
 * caller holds the lock.
 */
void contexts_gone(struct regions *regions, CUcontext context);

/*
 * To be called after a release or reset: checks whether primary contexts have ended. The caller
 * holds the lock.
 */
void contexts_check_primary(struct regions *regions, CUdevice device);
void contexts_check_primaries(struct regions *regions);

/*
 * Adds a context that is only a view of the primary one. It costs nothing, and memory allocated in
 * it belongs to the primary one.
 */
void contexts_add_view(struct regions *regions, CUcontext context);

/*
 * For cuCtxSetLimit: the bytes that the current context is charged for its stack, printf buffer or
 * heap (`limit`: 0 to 2), and a change of that to `bytes`. Returns false if the memory limit does
 * not allow it.
 */
uint64_t contexts_limit(struct regions *regions, CUdevice device, int limit);
bool contexts_set_limit(struct regions *regions, CUdevice device, int limit, uint64_t bytes);

/*
 * The same for the `bytes` that the stacks of a kernel need: stacks never take less from then on.
 */
bool contexts_need_stacks(struct regions *regions, CUdevice device, uint64_t bytes);

#endif
