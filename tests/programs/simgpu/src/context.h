/* Contexts, and which one a thread works in. */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "driver.h"

struct CUctx_st {
    uint32_t magic;
    CUdevice device;
    unsigned card;
    unsigned flags;
    unsigned version; /* of the cuCtxCreate that made it; what cuCtxGetApiVersion says */
    bool primary;
    CUcontext whole; /* of which this is a view; NULL: it is none */
    unsigned users; /* of a primary context: retains minus releases */
    uint64_t id; /* of this time that it is open: primary contexts begin again */
    sim_u64 charged; /* on the card: its own cost and its code's */
    struct code_chunk *code;
    struct stored *storage;
    uint64_t limits[16];
    uint64_t stack_bytes; /* on the card: of stacks beyond the usual size */
    int cache_config, shared_config;
    _Atomic bool alive;
    _Atomic CUresult fault; /* what a kernel did wrong: all calls say so until the context ends */
    CUcontext next; /* of all that there ever were */
};

/* The calling thread's context, alive and on a card that is there. */
CUresult context_current(CUcontext *context);
/* The device of the current context. */
CUresult context_device(CUdevice *device);
/* What is taken in a view is the whole's. */
static inline CUcontext context_whole(CUcontext context) {
    return context->whole ? context->whole : context;
}
/* Makes `view` one. */
void context_view(CUcontext view, CUcontext whole);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetId(CUcontext context, unsigned long long *id);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
/* The device's primary context, which need not be open. */
CUcontext context_primary(CUdevice device);
CUresult context_check(CUcontext context);
/* Stacks of at least so many bytes for each thread that fits on the card: they stay. */
CUresult context_need_stack(CUcontext context, uint64_t bytes);
/* Calls it for every living context, none of which begins or ends meanwhile; until it fails. */
CUresult context_each(CUresult (*visit)(CUcontext context));

/* What other parts do when a context begins ... */
CUresult library_enter_context(CUcontext context);
/* ... and when it ends. */
void storage_end_context(CUcontext context);
void stream_end_context(CUcontext context);
void memory_end_context(CUcontext context);
void external_end_context(CUcontext context);
void code_end_context(CUcontext context);

#endif
