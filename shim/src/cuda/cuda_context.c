/* Making and ending contexts, which take hundreds of MiB each. */
#include "base/numbers.h"
#include "lookup/relax.h"
#include "memory/allocation.h"
#include "memory/contexts.h"
#include "memory/stacks.h"
#include "region/enter.h"

/* Charges a context. On success with charge->regions NULL, nothing is counted. */
static CUresult begin(struct context_charge *charge, CUdevice device) {
    *charge = (struct context_charge){0};
    CUresult result = shim_enter(&charge->regions);
    if (result != CUDA_SUCCESS || !charge->regions) return result;
    return contexts_begin(charge, device, false);
}

static CUresult end(struct context_charge *charge, CUresult result, CUcontext *context) {
    return charge->regions ? contexts_end(charge, result, context ? *context : NULL) : result;
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    struct context_charge charge;
    CUresult result = begin(&charge, device);
    return result == CUDA_SUCCESS
               ? end(&charge, REAL(cuCtxCreate)(context, flags, device), context)
               : result;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    struct context_charge charge;
    CUresult result = begin(&charge, device);
    return result == CUDA_SUCCESS
               ? end(&charge, REAL(cuCtxCreate_v2)(context, flags, device), context)
               : result;
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned flags,
                               CUdevice device) {
    struct context_charge charge;
    CUresult result = begin(&charge, device);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuCtxCreate_v3)(context, affinities, count, flags, device);
    return end(&charge, result, context);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags,
                               CUdevice device) {
    struct context_charge charge;
    CUresult result = begin(&charge, device);
    return result == CUDA_SUCCESS
               ? end(&charge, REAL(cuCtxCreate_v4)(context, parameters, flags, device), context)
               : result;
}

/* Only the first retain makes the context. */
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct context_charge charge = {0};
    CUresult result = shim_enter(&charge.regions);
    if (result == CUDA_SUCCESS && charge.regions) result = contexts_begin(&charge, device, true);
    if (result != CUDA_SUCCESS) return result;
    return end(&charge, REAL(cuDevicePrimaryCtxRetain)(context, device), context);
}

static CUresult end_primary(CUresult (*call)(CUdevice), CUdevice device) {
    struct regions *regions = shim_known();
    if (!regions) return call(device);
    CUcontext primary = contexts_primary(regions, device);
    contexts_lock(regions, primary);
    CUresult result = call(device);
    if (result == CUDA_SUCCESS) contexts_check_primary(regions, device);
    contexts_unlock(regions, primary);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxRelease), device);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxRelease_v2), device);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxReset), device);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxReset_v2), device);
}

/*
 * Whether the context has ended. A context that still reports its version exists, since others are
 * still attached to it.
 */
static bool is_gone(CUcontext context) {
    unsigned version;
    return RELAXED(cuCtxGetApiVersion, context, &version) != CUDA_SUCCESS;
}

static CUresult end_context(CUresult (*call)(CUcontext), CUcontext context, bool for_sure) {
    struct regions *regions = shim_known();
    if (!regions) return call(context);
    contexts_lock(regions, context);
    CUresult result = call(context);
    if (result == CUDA_SUCCESS && (for_sure || is_gone(context))) contexts_gone(regions, context);
    contexts_unlock(regions, context);
    return result;
}

EXPORT CUresult cuCtxDestroy(CUcontext context) {
    return end_context(REAL(cuCtxDestroy), context, true);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    return end_context(REAL(cuCtxDestroy_v2), context, true);
}

EXPORT CUresult cuCtxDetach(CUcontext context) {
    return end_context(REAL(cuCtxDetach), context, false);
}

/* A green context makes the primary context if there is none, and retains it. */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                                 unsigned flags) {
    CUcontext primary;
    CUresult result = cuDevicePrimaryCtxRetain(&primary, device);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuGreenCtxCreate)(green, resources, device, flags);
    cuDevicePrimaryCtxRelease_v2(device);
    return result;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    struct regions *regions = shim_known();
    CUcontext view = NULL;
    if (!regions) return REAL(cuGreenCtxDestroy)(green);
    contexts_lock(regions, NULL); /* the primary context may end with it */
    RELAXED(cuCtxFromGreenCtx, &view, green);
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    if (result == CUDA_SUCCESS) {
        if (view) contexts_gone(regions, view);
        contexts_check_primaries(regions);
    }
    contexts_unlock(regions, NULL);
    return result;
}

/* The resulting context is a view of a part of the primary context. */
EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    CUresult result = REAL(cuCtxFromGreenCtx)(context, green);
    struct regions *regions = shim_known();
    if (result == CUDA_SUCCESS && regions && context) contexts_add_view(regions, *context);
    return result;
}

/*
 * Bytes that the driver takes on the device for the limit, beyond its default, which the context's
 * cost includes.
 */
static uint64_t limit_bytes(int limit, size_t value, CUdevice device) {
    uint64_t usual = limit == CU_LIMIT_PRINTF_FIFO_SIZE ? 1 << 20 : 8 << 20;
    if (limit == CU_LIMIT_STACK_SIZE) return stacks_bytes(device, value);
    return value > usual ? value - usual : 0;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    struct regions *regions;
    CUdevice device;
    bool counted = limit >= CU_LIMIT_STACK_SIZE && limit <= CU_LIMIT_MALLOC_HEAP_SIZE;
    CUresult result = shim_enter(&regions);
    if (result != CUDA_SUCCESS) return result;
    if (!regions || !counted || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return REAL(cuCtxSetLimit)(limit, value);
    uint64_t before = contexts_limit(regions, device, limit);
    uint64_t after = limit_bytes(limit, value, device);
    if (!contexts_set_limit(regions, device, limit, larger(before, after)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = REAL(cuCtxSetLimit)(limit, value);
    contexts_set_limit(regions, device, limit, result == CUDA_SUCCESS ? after : before);
    return result;
}
