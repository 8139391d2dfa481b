#include "late.h"

#include <stdlib.h>

#include "account.h"
#include "cards.h"
#include "relax.h"

struct late {
    CUevent event; /* behind the free; NULL: none could be made, so it counts until the context ends */
    CUdeviceptr pointer;
    struct alloc alloc;
    bool ours; /* to free: the driver has not been told */
    struct late *next;
};

static CUevent record_here(CUstream stream) {
    CUevent event;
    if (REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return NULL;
    if (REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS) return event;
    REAL(cuEventDestroy_v2)(event);
    return NULL;
}

static CUevent record(CUstream stream) {
    if (!cards_enter(stream)) return NULL;
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

void late_free(struct regions *regions, CUstream stream, CUdeviceptr pointer,
               const struct alloc *alloc) {
    struct late *late = malloc(sizeof *late);
    if (!late) return; /* counted for ever: rather that than too little */
    *late = (struct late){record(stream), pointer, *alloc, false, NULL};
    add(regions->process, late);
}

bool late_free_ourselves(struct regions *regions, CUstream stream, CUdeviceptr pointer,
                         const struct alloc *alloc) {
    CUevent event = record(stream);
    struct late *late = event ? malloc(sizeof *late) : NULL;
    if (late) {
        *late = (struct late){event, pointer, *alloc, true, NULL};
        add(regions->process, late);
    } else if (event) {
        REAL(cuEventDestroy_v2)(event);
    }
    return late;
}

static void end(struct regions *regions, struct late *late) {
    account_leave(regions, late->pointer, &late->alloc);
    free(late);
}

typedef bool is_over(struct late *late, unsigned owner);

/* Takes those out of the list that are over. Those which are left to free become a list of their own. */
static bool sweep(struct regions *regions, is_over *over, unsigned owner, struct late **ours) {
    struct process *process = regions->process;
    bool any = false;
    process_lock(&process->late_lock);
    for (struct late **link = &process->late; *link;) {
        struct late *late = *link;
        if (!over(late, owner)) {
            link = &late->next;
            continue;
        }
        __atomic_store_n(link, late->next, __ATOMIC_RELAXED);
        any = true;
        if (!late->ours) {
            end(regions, late);
            continue;
        }
        late->next = *ours;
        *ours = late;
    }
    process_unlock(&process->late_lock);
    return any;
}

static bool is_passed(struct late *late, unsigned unused) {
    (void)unused;
    if (!late->event || REAL(cuEventQuery)(late->event) != CUDA_SUCCESS) return false;
    REAL(cuEventDestroy_v2)(late->event);
    return true;
}

/* Without the lock, since the driver may let this wait for work. */
static void free_all(struct regions *regions, struct late *ours) {
    for (struct late *next; ours; ours = next) {
        next = ours->next;
        REAL(cuMemFree_v2)(ours->pointer);
        end(regions, ours);
    }
}

bool late_settle(struct regions *regions) {
    struct late *ours = NULL;
    if (!late_any(regions)) return false;
    int mode = relax_begin();
    bool any = sweep(regions, is_passed, 0, &ours);
    free_all(regions, ours);
    relax_end(mode);
    return any;
}

/* Its memory is gone with it. */
static bool is_of(struct late *late, unsigned owner) {
    if (late->alloc.owner != owner) return false;
    late->ours = false;
    return true;
}

void late_context_gone(struct regions *regions, unsigned owner) {
    struct late *none = NULL;
    if (late_any(regions)) sweep(regions, is_of, owner, &none);
}
