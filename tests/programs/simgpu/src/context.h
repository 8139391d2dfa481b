/* Contexts, and the current context of a thread. */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "driver.h"

struct CUctx_st {
    uint32_t magic;
    CUdevice device;
    unsigned card;
    unsigned flags;
    unsigned version; /* version of the cuCtxCreate that made it, for cuCtxGetApiVersion */
    bool primary;
    CUcontext whole; /* the context of which this is a view; NULL if it is not a view */
    unsigned users; /* of a primary context: number of retains minus releases */
    uint64_t id; /* unique to each opening, since a primary context can be opened again */
    sim_u64 charged; /* bytes on the card for the context itself and its code */
    struct code_chunk *code;
    struct stored *storage;
    uint64_t limits[16];
    uint64_t stack_bytes; /* bytes on the card for stacks beyond the default size */
    int cache_config, shared_config;
    _Atomic bool alive;
    _Atomic CUresult fault; /* the error of a faulting kernel, which all calls return until the
                               context ends */
    CUcontext next; /* in the list of all contexts that were ever made */
};

/* Sets *context to the calling thread's context. Returns an error if it has ended or its card is
 * lost. */
CUresult context_current(CUcontext *context);
/* Sets *device to the device of the current context. */
CUresult context_device(CUdevice *device);
/* The context that owns what is allocated in this one: a view's whole context. */
static inline CUcontext context_whole(CUcontext context) {
    return context->whole ? context->whole : context;
}
/* Makes `view` a view of `whole`. */
void context_view(CUcontext view, CUcontext whole);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetId(CUcontext context, unsigned long long *id);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
/* The device's primary context, whether or not it is open. */
CUcontext context_primary(CUdevice device);
CUresult context_check(CUcontext context);
/* Enlarges the stacks of all threads that fit on the card to at least `bytes` each. They keep that
 * size. */
CUresult context_need_stack(CUcontext context, uint64_t bytes);
/* Calls `visit` for every living context until one call fails; no context begins or ends
 * meanwhile. */
CUresult context_each(CUresult (*visit)(CUcontext context));

/* Called in other files when a context begins ... */
CUresult library_enter_context(CUcontext context);
/* ... and when it ends. */
void storage_end_context(CUcontext context);
void stream_end_context(CUcontext context);
void memory_end_context(CUcontext context);
void external_end_context(CUcontext context);
void code_end_context(CUcontext context);

#endif
