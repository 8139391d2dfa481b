/* Contexts: each takes memory on its card, and a thread has a stack of them. */
#include "context.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAGIC = 0x43545821, STACK = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[SIM_MAX_CARDS];
static unsigned primary_flags[SIM_MAX_CARDS];
static uint64_t last_id;
static CUcontext all;

static __thread CUcontext stack[STACK];
static __thread int depth;

/* Keeps the handle valid, since other threads may still have it on their stacks. */
static void close_context(CUcontext context) {
    storage_end_context(context);
    stream_end_context(context);
    memory_end_context(context);
    external_end_context(context);
    context->alive = false;
    driver.sim.state->processes[driver.sim.slot].contexts[context->card]--;
    code_end_context(context);
    sim_give(&driver.sim, context->card, context->charged);
}

/* Takes the context's memory, halfway through the time (context_ns) that it takes to make one. */
static bool take_cost(unsigned card) {
    const struct sim_card *info = &driver.sim.state->cards[card];
    uint64_t half = info->context_ns / 2;
    struct timespec pause = {(time_t)(half / 1000000000), (long)(half % 1000000000)};
    if (half) nanosleep(&pause, NULL);
    bool taken = sim_take(&driver.sim, card, info->context_bytes);
    if (half && taken) nanosleep(&pause, NULL);
    return taken;
}

static CUcontext new_handle(CUdevice device) {
    CUcontext context = calloc(1, sizeof *context);
    if (!context) abort();
    context->magic = MAGIC;
    context->device = device;
    context->card = driver.card[device];
    context->next = all;
    return all = context;
}

/* Resets all state, since a primary context may have been open before. */
static void clear(CUcontext context, unsigned flags, unsigned version) {
    context->flags = flags;
    context->version = version;
    context->id = ++last_id;
    context->users = 0;
    context->fault = CUDA_SUCCESS;
    context->stack_bytes = 0;
    context->cache_config = context->shared_config = 0;
    memset(context->limits, 0, sizeof context->limits);
}

static CUresult open_context(CUcontext context, unsigned flags, unsigned version) {
    if (sim_card_lost(&driver.sim, context->card)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!take_cost(context->card)) return CUDA_ERROR_OUT_OF_MEMORY;
    clear(context, flags, version);
    context->charged = driver.sim.state->cards[context->card].context_bytes;
    context->alive = true;
    driver.sim.state->processes[driver.sim.slot].contexts[context->card]++;
    CUresult result = library_enter_context(context);
    if (result) close_context(context);
    return result;
}

void context_view(CUcontext view, CUcontext whole) {
    pthread_mutex_lock(&lock);
    *view = (struct CUctx_st){.magic = MAGIC, .device = whole->device, .card = whole->card,
                              .version = whole->version, .whole = whole, .id = ++last_id,
                              .alive = true};
    pthread_mutex_unlock(&lock);
}

CUresult context_each(CUresult (*visit)(CUcontext context)) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (CUcontext each = all; each && !result; each = each->next)
        if (each->alive) result = visit(each);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult context_check(CUcontext context) {
    TRY(driver_ready());
    if (!context || context->magic != MAGIC) return CUDA_ERROR_INVALID_CONTEXT;
    return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_current(CUcontext *context) {
    TRY(driver_ready());
    if (!depth || !stack[depth - 1]) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[depth - 1];
    if (!(*context)->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (sim_card_lost(&driver.sim, (*context)->card)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return context_whole(*context)->fault;
}

CUresult context_device(CUdevice *device) {
    CUcontext context;
    TRY(context_current(&context));
    *device = context->device;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context) {
    if (depth == STACK) return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

/* ---- cuCtxCreate, every version ------------------------------------------------------------- */

static CUresult create(CUcontext *made, unsigned flags, CUdevice device, unsigned version) {
    TRY(driver_device(device));
    if (!made || flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    if (depth == STACK) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    CUcontext context = new_handle(device);
    CUresult result = open_context(context, flags, version);
    pthread_mutex_unlock(&lock);
    if (result) return result;
    *made = context;
    return push(context);
}

API CUresult cuCtxCreate(CUcontext *made, unsigned flags, CUdevice device) {
    return create(made, flags, device, 3010);
}

API CUresult cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device) {
    return create(made, flags, device, 3020);
}

API CUresult cuCtxCreate_v3(CUcontext *made, void *affinities, int count, unsigned flags,
                            CUdevice device) {
    (void)affinities;
    if (count < 0) return CUDA_ERROR_INVALID_VALUE;
    return create(made, flags, device, 3030);
}

API CUresult cuCtxCreate_v4(CUcontext *made, void *parameters, unsigned flags, CUdevice device) {
    (void)parameters;
    return create(made, flags, device, 3040);
}

API CUresult cuCtxDestroy_v2(CUcontext context) {
    TRY(context_check(context));
    if (context->primary || context->whole) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    close_context(context);
    pthread_mutex_unlock(&lock);
    if (depth && stack[depth - 1] == context) depth--;
    return CUDA_SUCCESS;
}

API CUresult cuCtxDestroy(CUcontext context) {
    return cuCtxDestroy_v2(context);
}

/* ---- the thread's stack --------------------------------------------------------------------- */

/* A primary context may be made current before it is open, as libcudart does. */
static CUresult may_be_current(CUcontext context) {
    CUresult result = context_check(context);
    return result == CUDA_ERROR_CONTEXT_IS_DESTROYED && context->primary ? CUDA_SUCCESS : result;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    TRY(may_be_current(context));
    return push(context);
}

API CUresult cuCtxPushCurrent(CUcontext context) {
    return cuCtxPushCurrent_v2(context);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    TRY(driver_ready());
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context) *context = stack[depth];
    return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent(CUcontext *context) {
    return cuCtxPopCurrent_v2(context);
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    TRY(driver_ready());
    if (context) TRY(may_be_current(context));
    if (!depth) return context ? push(context) : CUDA_SUCCESS;
    if (context) stack[depth - 1] = context;
    else depth--;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
    TRY(driver_ready());
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    TRY(driver_ready());
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!depth || !stack[depth - 1]) return CUDA_ERROR_INVALID_CONTEXT;
    TRY(may_be_current(stack[depth - 1]));
    *device = stack[depth - 1]->device;
    return CUDA_SUCCESS;
}

/* ---- primary contexts ----------------------------------------------------------------------- */

/* The device's primary context, whose handle is the same each time it is opened. The caller holds
 * the lock. */
static CUcontext primary_of(CUdevice device) {
    if (!primaries[device]) {
        primaries[device] = new_handle(device);
        primaries[device]->primary = true;
    }
    return primaries[device];
}

CUcontext context_primary(CUdevice device) {
    pthread_mutex_lock(&lock);
    CUcontext primary = primary_of(device);
    pthread_mutex_unlock(&lock);
    return primary;
}

static CUresult retain(CUcontext *context, CUdevice device) {
    CUcontext primary = primary_of(device);
    if (!primary->alive) TRY(open_context(primary, primary_flags[device], 3020));
    primary->users++;
    *context = primary;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    TRY(driver_device(device));
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUresult result = retain(context, device);
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult let_go(CUdevice device, bool all) {
    CUcontext primary = primaries[device];
    if (!primary || !primary->alive) return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (!all && --primary->users) return CUDA_SUCCESS;
    primary->users = 0;
    close_context(primary);
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device, bool all) {
    TRY(driver_device(device));
    pthread_mutex_lock(&lock);
    CUresult result = let_go(device, all);
    pthread_mutex_unlock(&lock);
    return result;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return release(device, false);
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return release(device, false);
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return release(device, true);
}

API CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return release(device, true);
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    TRY(driver_device(device));
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    primary_flags[device] = flags;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    TRY(driver_device(device));
    if (flags) *flags = primary_flags[device];
    if (active) *active = primaries[device] && primaries[device]->alive;
    return CUDA_SUCCESS;
}
