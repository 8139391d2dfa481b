#include "memory/late.h"

#include <stdlib.h>

#include "base/sys.h"
#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/account.h"
#include "memory/contexts.h"

struct late {
    CUevent event;   /* behind the free; NULL: none could be made, or it is passed, or gone */
    CUcontext there; /* the context of the event */
    CUcontext home;  /* that of the memory, where it is freed */
    CUdeviceptr pointer;
    struct alloc alloc;
    bool ours;       /* to free: the driver has not been told */
    bool busy;       /* being freed */
    bool rests;      /* one of its contexts may be ending */
    bool gone;       /* its home ended although it was being freed: the program was at it meanwhile */
    uint32_t tried;  /* in which round it was last */
    struct late *next;
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

static void add(struct process *process, struct late *late) {
    process_lock(&process->late_lock);
    late->next = process->late;
    __atomic_store_n(&process->late, late, __ATOMIC_RELAXED);
    process_unlock(&process->late_lock);
}

bool late_free(struct regions *regions, CUstream stream, CUdeviceptr pointer,
               const struct alloc *alloc, bool ours) {
    struct late *late = malloc(sizeof *late);
    if (!late) return false;
    CUcontext there = cards_context(stream);
    *late = (struct late){.event = record(there, stream), .there = there,
                          .home = contexts_numbered(regions, alloc->owner),
                          .pointer = pointer, .alloc = *alloc, .ours = ours};
    bool known = late->event;
    if (known || !ours) add(regions->process, late);
    else free(late);
    return known;
}

/* ---- in the list, whose lock the caller holds ---------------------------------------------------- */

/* Takes it out of the list. */
static void end(struct regions *regions, struct late **link) {
    struct late *late = *link;
    __atomic_store_n(link, late->next, __ATOMIC_RELAXED);
    account_leave(regions, late->pointer, &late->alloc);
    free(late);
}

static struct late **find(struct process *process, const struct late *late) {
    struct late **link = &process->late;
    while (*link != late) link = &(*link)->next;
    return link;
}

/* Nothing is left to wait for: what could not be freed then, say. */
static bool is_ready(const struct late *late) {
    return late->ours && !late->event;
}

static bool has_passed(struct late *late) {
    if (!late->event || RELAXED(cuEventQuery, late->event) != CUDA_SUCCESS) return false;
    RELAXED(cuEventDestroy_v2, late->event);
    late->event = NULL;
    return true;
}

/* Ends what streams have passed, unless it is ours to free. */
static bool sweep_passed(struct regions *regions) {
    bool any = false;
    for (struct late **link = &regions->process->late; *link;) {
        bool ended = !(*link)->rests && has_passed(*link) && !(*link)->ours;
        if (ended) end(regions, link);
        else link = &(*link)->next;
        any = any || ended;
    }
    return any;
}

/* One that is to be freed and was not tried in this round, or NULL. */
static struct late *take_one(struct process *process, uint32_t round) {
    struct late *late = process->late;
    while (late && !(is_ready(late) && !late->busy && !late->rests && late->tried != round))
        late = late->next;
    if (late) late->busy = true, late->tried = round;
    return late;
}

/* What could not be freed stays charged, for another try. */
static bool finish(struct regions *regions, struct late *late, bool freed) {
    late->busy = false;
    if (freed || late->gone) end(regions, find(regions->process, late));
    return freed;
}

/* The thread may have no context, or that of another card. Where the home is not known, any may do. */
static bool free_there(const struct late *late) {
    if (late->home && !cards_enter(late->home)) return false;
    CUresult result = RELAXED(cuMemFree_v2, late->pointer);
    if (late->home) cards_leave();
    return result == CUDA_SUCCESS;
}

/* The driver may let this wait for work: so without the lock. */
static bool free_ready(struct regions *regions) {
    struct process *process = regions->process;
    uint32_t round = ++process->late_rounds;
    bool any = false;
    for (struct late *late; (late = take_one(process, round));) {
        process_unlock(&process->late_lock);
        bool freed = free_there(late);
        process_lock(&process->late_lock);
        any = finish(regions, late, freed) || any;
    }
    return any;
}

bool late_settle(struct regions *regions) {
    if (!late_any(regions)) return false;
    process_lock(&regions->process->late_lock);
    bool passed = sweep_passed(regions), freed = free_ready(regions);
    process_unlock(&regions->process->late_lock);
    return passed || freed;
}

/* ---- contexts that end --------------------------------------------------------------------------- */

/* Whether some of it is just being freed. */
static bool set_rests(struct process *process, CUcontext context, bool rests) {
    bool any_busy = false;
    process_lock(&process->late_lock);
    for (struct late *late = process->late; late; late = late->next) {
        if (context && late->home != context && late->there != context) continue;
        late->rests = rests;
        any_busy = any_busy || late->busy;
    }
    process_unlock(&process->late_lock);
    return any_busy;
}

void late_rest(struct regions *regions, CUcontext context, bool rests) {
    if (!late_any(regions)) return;
    while (set_rests(regions->process, context, rests) && rests) sys_sleep(50);
}

/* What the stream had still to come to, nobody will tell. */
static void forget_stream(struct late *late) {
    late->event = NULL;
    late->there = NULL;
    late->rests = false;
}

/* Its memory is gone with it. */
void late_context_gone(struct regions *regions, CUcontext context) {
    if (!late_any(regions)) return;
    process_lock(&regions->process->late_lock);
    for (struct late **link = &regions->process->late; *link;) {
        struct late *late = *link;
        if (late->there == context) forget_stream(late);
        bool is_its = late->home == context;
        if (is_its && late->busy) late->gone = true;
        if (is_its && !late->busy) end(regions, link);
        else link = &late->next;
    }
    process_unlock(&regions->process->late_lock);
}
