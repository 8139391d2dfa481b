#include "memory/deferred_free.h"

#include <stdlib.h>

#include "base/sys.h"
#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/alloc_kinds.h"
#include "memory/contexts.h"

struct deferred_free {
    CUevent event;   /* after the free; NULL: could not be made, has passed, or is gone */
    CUcontext there; /* the event's context */
    CUcontext home;  /* the memory's context, in which it is freed */
    CUdeviceptr pointer;
    struct alloc alloc;
    bool ours;       /* the shim has to free it: the driver was not asked to */
    bool busy;       /* a thread is freeing it */
    bool rests;      /* one of its contexts may be ending */
    bool gone;       /* its home ended while a thread was freeing it */
    uint32_t tried;  /* the round in which it was last tried */
    struct deferred_free *next;
};

static CUevent record_here(CUstream stream) {
    CUevent event;
    if (RELAXED(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return NULL;
    if (RELAXED(cuEventRecord, event, stream) == CUDA_SUCCESS) return event;
    RELAXED(cuEventDestroy_v2, event);
    return NULL;
}

static CUevent record(CUcontext there, CUstream stream) {
    if (!cards_enter(there)) return NULL;
    CUevent event = record_here(stream);
    cards_leave();
    return event;
}

static void add(struct process *process, struct deferred_free *deferred) {
    lock_take(&process->deferred_lock);
    deferred->next = process->deferred;
    __atomic_store_n(&process->deferred, deferred, __ATOMIC_RELAXED);
    lock_release(&process->deferred_lock);
}

bool deferred_free_add(struct regions *regions, CUstream stream, CUdeviceptr pointer,
               const struct alloc *alloc, bool ours) {
    struct deferred_free *deferred = malloc(sizeof *deferred);
    if (!deferred) return false;
    CUcontext there = cards_context(stream);
    *deferred = (struct deferred_free){.event = record(there, stream), .there = there,
                          .home = contexts_numbered(regions, alloc->owner),
                          .pointer = pointer, .alloc = *alloc, .ours = ours};
    bool known = deferred->event;
    if (known || !ours) add(regions->process, deferred);
    else free(deferred);
    return known;
}

/* ---- the list, whose lock the caller holds --------------------------------------------------- */

/* Removes it from the list and gives its charge back. */
static void end(struct regions *regions, struct deferred_free **link) {
    struct deferred_free *deferred = *link;
    __atomic_store_n(link, deferred->next, __ATOMIC_RELAXED);
    alloc_kind_release(regions, deferred->pointer, &deferred->alloc);
    free(deferred);
}

static struct deferred_free **find(struct process *process, const struct deferred_free *deferred) {
    struct deferred_free **link = &process->deferred;
    while (*link != deferred) link = &(*link)->next;
    return link;
}

/* Whether the shim can free it now, such as after a failed attempt. */
static bool is_ready(const struct deferred_free *deferred) {
    return deferred->ours && !deferred->event;
}

static bool has_passed(struct deferred_free *deferred) {
    if (!deferred->event || RELAXED(cuEventQuery, deferred->event) != CUDA_SUCCESS) return false;
    RELAXED(cuEventDestroy_v2, deferred->event);
    deferred->event = NULL;
    return true;
}

/* Ends the frees that streams have passed, except those that the shim has to do. */
static bool sweep_passed(struct regions *regions) {
    bool any = false;
    for (struct deferred_free **link = &regions->process->deferred; *link;) {
        bool ended = !(*link)->rests && has_passed(*link) && !(*link)->ours;
        if (ended) end(regions, link);
        else link = &(*link)->next;
        any = any || ended;
    }
    return any;
}

/* Marks as busy one that is ready and was not tried in this round; NULL if there is none. */
static struct deferred_free *take_one(struct process *process, uint32_t round) {
    struct deferred_free *deferred = process->deferred;
    while (deferred && !(is_ready(deferred) && !deferred->busy && !deferred->rests && deferred->tried != round))
        deferred = deferred->next;
    if (deferred) deferred->busy = true, deferred->tried = round;
    return deferred;
}

/* Memory that could not be freed stays charged, and is tried again later. */
static bool finish(struct regions *regions, struct deferred_free *deferred, bool freed) {
    deferred->busy = false;
    if (freed || deferred->gone) end(regions, find(regions->process, deferred));
    return freed;
}

/*
 * Enters the memory's context for the free, since the thread may have none, or one of another card.
 * If that is not known, the current one is used.
 */
static bool free_there(const struct deferred_free *deferred) {
    if (deferred->home && !cards_enter(deferred->home)) return false;
    CUresult result = RELAXED(cuMemFree_v2, deferred->pointer);
    if (deferred->home) cards_leave();
    return result == CUDA_SUCCESS;
}

/* Releases the lock for each free, since the driver may wait for work in it. */
static bool free_ready(struct regions *regions) {
    struct process *process = regions->process;
    uint32_t round = ++process->deferred_rounds;
    bool any = false;
    for (struct deferred_free *deferred; (deferred = take_one(process, round));) {
        lock_release(&process->deferred_lock);
        bool freed = free_there(deferred);
        lock_take(&process->deferred_lock);
        any = finish(regions, deferred, freed) || any;
    }
    return any;
}

bool deferred_free_settle(struct regions *regions) {
    if (!deferred_free_any(regions)) return false;
    lock_take(&regions->process->deferred_lock);
    bool passed = sweep_passed(regions), freed = free_ready(regions);
    lock_release(&regions->process->deferred_lock);
    return passed || freed;
}

/* ---- contexts that end ----------------------------------------------------------------------- */

/* Returns whether a thread is freeing any of the context's memory. */
static bool set_rests(struct process *process, CUcontext context, bool rests) {
    bool any_busy = false;
    lock_take(&process->deferred_lock);
    for (struct deferred_free *deferred = process->deferred; deferred; deferred = deferred->next) {
        if (context && deferred->home != context && deferred->there != context) continue;
        deferred->rests = rests;
        any_busy = any_busy || deferred->busy;
    }
    lock_release(&process->deferred_lock);
    return any_busy;
}

void deferred_free_rest(struct regions *regions, CUcontext context, bool rests) {
    if (!deferred_free_any(regions)) return;
    while (set_rests(regions->process, context, rests) && rests) sys_sleep(50);
}

/* Forgets the event of a stream that is gone. */
static void forget_stream(struct deferred_free *deferred) {
    deferred->event = NULL;
    deferred->there = NULL;
    deferred->rests = false;
}

/* The memory of the context is gone with it, so its charge is given back. */
void deferred_free_context_gone(struct regions *regions, CUcontext context) {
    if (!deferred_free_any(regions)) return;
    lock_take(&regions->process->deferred_lock);
    for (struct deferred_free **link = &regions->process->deferred; *link;) {
        struct deferred_free *deferred = *link;
        if (deferred->there == context) forget_stream(deferred);
        bool is_its = deferred->home == context;
        if (is_its && deferred->busy) deferred->gone = true;
        if (is_its && !deferred->busy) end(regions, link);
        else link = &deferred->next;
    }
    lock_release(&regions->process->deferred_lock);
}
