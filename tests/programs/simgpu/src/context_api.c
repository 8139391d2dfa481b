/* The entry points that query and configure contexts. Most settings are only stored. */
#include "context.h"

#include <pthread.h>

#include "address.h"
#include "launch.h"

enum { LIMITS = 16, STACK_SIZE = 0, PRINTF_FIFO = 1, MALLOC_HEAP = 2 };

static pthread_mutex_t stack_lock = PTHREAD_MUTEX_INITIALIZER;

API CUresult cuCtxGetFlags(unsigned *flags) {
    CUcontext context;
    TRY(context_current(&context));
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetFlags(unsigned flags) {
    CUcontext context;
    TRY(context_current(&context));
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}

static CUresult or_current(CUcontext *context) {
    return *context ? context_check(*context) : context_current(context);
}

API CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    TRY(or_current(&context));
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    TRY(or_current(&context));
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = context->version;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    TRY(or_current(&context));
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

static uint64_t default_limit(int limit) {
    switch (limit) {
    case STACK_SIZE: return 1024;
    case PRINTF_FIFO: return 1 << 20;
    case MALLOC_HEAP: return 8 << 20;
    default: return 0;
    }
}

static uint64_t limit_of(CUcontext context, int limit) {
    return context->limits[limit] ? context->limits[limit] : default_limit(limit);
}

/* Bytes of stacks of `each` bytes beyond the default size, which the context's own cost
 * includes. */
static uint64_t stack_bytes(CUcontext context, uint64_t each) {
    uint64_t sms = driver.sim.state->cards[context->card].sm_count, usual = default_limit(STACK_SIZE);
    return each > usual ? round_up((each - usual) * sms * LAUNCH_THREADS_OF_SM, PAGE_BYTES) : 0;
}

static CUresult set_stack(CUcontext context, uint64_t each) {
    uint64_t bytes = stack_bytes(context, each), before = context->stack_bytes;
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (bytes > before && !sim_take(&driver.sim, context->card, bytes - before))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes < before) sim_give(&driver.sim, context->card, before - bytes);
    context->charged += bytes - before; /* given back with the context */
    context->stack_bytes = bytes;
    context->limits[STACK_SIZE] = each;
    return CUDA_SUCCESS;
}

CUresult context_need_stack(CUcontext context, uint64_t bytes) {
    CUcontext whole = context_whole(context);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&stack_lock);
    if (bytes > limit_of(whole, STACK_SIZE)) result = set_stack(whole, bytes);
    pthread_mutex_unlock(&stack_lock);
    return result;
}

API CUresult cuCtxGetLimit(size_t *value, int limit) {
    CUcontext context;
    TRY(context_current(&context));
    if (!value || limit < 0 || limit >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    *value = limit_of(context_whole(context), limit);
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(int limit, size_t value) {
    CUcontext context;
    TRY(context_current(&context));
    if (limit < 0 || limit >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    context = context_whole(context);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&stack_lock);
    if (limit == STACK_SIZE) result = set_stack(context, value);
    else context->limits[limit] = value;
    pthread_mutex_unlock(&stack_lock);
    return result;
}

API CUresult cuCtxGetCacheConfig(int *config) {
    CUcontext context;
    TRY(context_current(&context));
    *config = context->cache_config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCacheConfig(int config) {
    CUcontext context;
    TRY(context_current(&context));
    context->cache_config = config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetSharedMemConfig(int *config) {
    CUcontext context;
    TRY(context_current(&context));
    *config = context->shared_config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetSharedMemConfig(int config) {
    CUcontext context;
    TRY(context_current(&context));
    context->shared_config = config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxResetPersistingL2Cache(void) {
    CUcontext context;
    return context_current(&context);
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    TRY(context_check(peer));
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return context_check(peer);
}

API CUresult cuProfilerStart(void) {
    return driver_ready();
}

API CUresult cuProfilerStop(void) {
    return driver_ready();
}
