#include "late.h"

#include <stdlib.h>

#include "account.h"
#include "cards.h"
#include "contexts.h"
#include "relax.h"

struct late {
    CUevent event; /* behind the free; NULL: none could be made, so it counts until the context ends */
    CUcontext home; /* where it is freed */
    CUdeviceptr pointer;
    struct alloc alloc;
    bool ours;          /* to free: the driver has not been told */
    bool busy;          /* being freed, and still in the list, where the end of its context finds it */
    bool gone;          /* so it was */
    struct late *next;
    struct late *next_busy;
};

static CUevent record_here(CUstream stream) {
    CUevent event;
    if (REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return NULL;
    if (REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS) return event;
    REAL(cuEventDestroy_v2)(event);
    return NULL;
}

static CUevent record(CUstream stream) {
    if (!cards_enter(cards_context(stream))) return NULL;
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
    *late = (struct late){.event = record(stream), .home = contexts_numbered(regions, alloc->owner),
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

/* Once passed, it stays so: what could not be freed then has no event any more. */
static bool is_passed(struct late *late) {
    if (!late->event) return late->ours;
    if (REAL(cuEventQuery)(late->event) != CUDA_SUCCESS) return false;
    REAL(cuEventDestroy_v2)(late->event);
    late->event = NULL;
    return true;
}

/* Ends what streams have passed. What of that is left to free becomes a list of its own. */
static bool sweep_passed(struct regions *regions, struct late **ours) {
    bool any = false;
    for (struct late **link = &regions->process->late; *link;) {
        struct late *late = *link;
        bool passed = !late->busy && is_passed(late);
        if (passed && !late->ours) {
            end(regions, link);
            any = true;
            continue;
        }
        if (passed) {
            late->busy = true;
            late->next_busy = *ours;
            *ours = late;
        }
        link = &late->next;
    }
    return any;
}

/* What could not be freed stays charged, for another try. */
static bool finish(struct regions *regions, struct late *late, bool freed) {
    late->busy = false;
    if (freed || late->gone) end(regions, find(regions->process, late));
    return freed;
}

/* ---- without the lock, since the driver may let this wait for work ------------------------------- */

/* The thread may have no context, or that of another card. Where the home is not known, any may do. */
static bool free_there(const struct late *late) {
    if (__atomic_load_n(&late->gone, __ATOMIC_ACQUIRE)) return false;
    if (late->home && !cards_enter(late->home)) return false;
    CUresult result = REAL(cuMemFree_v2)(late->pointer);
    if (late->home) cards_leave();
    return result == CUDA_SUCCESS;
}

static bool free_all(struct regions *regions, struct late *ours) {
    bool any = false;
    for (struct late *next; ours; ours = next) {
        next = ours->next_busy;
        bool freed = free_there(ours);
        process_lock(&regions->process->late_lock);
        any = finish(regions, ours, freed) || any;
        process_unlock(&regions->process->late_lock);
    }
    return any;
}

bool late_settle(struct regions *regions) {
    struct late *ours = NULL;
    if (!late_any(regions)) return false;
    int mode = relax_begin();
    process_lock(&regions->process->late_lock);
    bool any = sweep_passed(regions, &ours);
    process_unlock(&regions->process->late_lock);
    any = free_all(regions, ours) || any;
    relax_end(mode);
    return any;
}

/* Its memory is gone with it; who is just freeing some of it ends that. */
void late_context_gone(struct regions *regions, unsigned owner) {
    if (!late_any(regions)) return;
    process_lock(&regions->process->late_lock);
    for (struct late **link = &regions->process->late; *link;) {
        struct late *late = *link;
        bool is_its = late->alloc.owner == owner;
        if (is_its && late->busy) __atomic_store_n(&late->gone, true, __ATOMIC_RELEASE);
        if (is_its && !late->busy) end(regions, link);
        else link = &late->next;
    }
    process_unlock(&regions->process->late_lock);
}
