#include "late.h"

#include <stdlib.h>

#include "account.h"
#include "relax.h"

struct late {
    CUevent event; /* behind the free; NULL: none could be made, so it counts until the context ends */
    CUdeviceptr pointer;
    struct alloc alloc;
    struct late *next;
};

static CUevent record_here(CUstream stream) {
    CUevent event;
    if (REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return NULL;
    if (REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS) return event;
    REAL(cuEventDestroy_v2)(event);
    return NULL;
}

/* An event belongs to the context that is current, and must be of the stream's. */
static CUevent record(CUstream stream) {
    CUcontext context, popped;
    if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS ||
        REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return NULL;
    CUevent event = record_here(stream);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return event;
}

void late_free(struct regions *regions, CUstream stream, CUdeviceptr pointer,
               const struct alloc *alloc) {
    struct process *process = regions->process;
    struct late *late = malloc(sizeof *late);
    if (!late) return; /* counted for ever: rather that than too little */
    *late = (struct late){record(stream), pointer, *alloc, NULL};
    process_lock(&process->late_lock);
    late->next = process->late;
    __atomic_store_n(&process->late, late, __ATOMIC_RELAXED);
    process_unlock(&process->late_lock);
}

static void end(struct regions *regions, struct late *late) {
    account_leave(regions, late->pointer, &late->alloc);
    free(late);
}

/* Takes those out of the list for which `is_over` is true. */
static bool sweep(struct regions *regions, bool (*is_over)(const struct late *late, unsigned owner),
                  unsigned owner) {
    struct process *process = regions->process;
    bool any = false;
    process_lock(&process->late_lock);
    for (struct late **link = &process->late; *link;) {
        struct late *late = *link;
        if (!is_over(late, owner)) {
            link = &late->next;
            continue;
        }
        __atomic_store_n(link, late->next, __ATOMIC_RELAXED);
        end(regions, late);
        any = true;
    }
    process_unlock(&process->late_lock);
    return any;
}

static bool is_passed(const struct late *late, unsigned unused) {
    (void)unused;
    if (!late->event || REAL(cuEventQuery)(late->event) != CUDA_SUCCESS) return false;
    REAL(cuEventDestroy_v2)(late->event);
    return true;
}

bool late_settle(struct regions *regions) {
    if (!late_any(regions)) return false;
    int mode = relax_begin();
    bool any = sweep(regions, is_passed, 0);
    relax_end(mode);
    return any;
}

static bool is_of(const struct late *late, unsigned owner) {
    return late->alloc.owner == owner;
}

void late_context_gone(struct regions *regions, unsigned owner) {
    if (late_any(regions)) sweep(regions, is_of, owner);
}
