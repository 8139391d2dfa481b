/* The entry points for memory pools. */
#include "pool.h"

enum {
    REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
    REUSE_ALLOW_OPPORTUNISTIC,
    REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    RELEASE_THRESHOLD,
    RESERVED_MEM_CURRENT,
    RESERVED_MEM_HIGH,
    USED_MEM_CURRENT,
    USED_MEM_HIGH,
};

static CUresult check(CUmemoryPool pool) {
    TRY(driver_ready());
    return pool_valid(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    TRY(capture_permits());
    TRY(driver_ready());
    if (!pool || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    TRY(driver_device(props->location.id));
    *pool = pool_create(props);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    TRY(capture_permits());
    TRY(check(pool));
    if (pool == pool_default(pool->device)) return CUDA_ERROR_INVALID_VALUE;
    pool_end(pool);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    TRY(capture_permits());
    TRY(check(pool));
    pool_trim(pool, keep);
    return CUDA_SUCCESS;
}

static int *switch_of(CUmemoryPool pool, int attribute) {
    switch (attribute) {
    case REUSE_FOLLOW_EVENT_DEPENDENCIES: return &pool->follow_events;
    case REUSE_ALLOW_OPPORTUNISTIC: return &pool->opportunistic;
    case REUSE_ALLOW_INTERNAL_DEPENDENCIES: return &pool->internal_dependencies;
    default: return NULL;
    }
}

static uint64_t *figure_of(CUmemoryPool pool, int attribute) {
    switch (attribute) {
    case RELEASE_THRESHOLD: return &pool->threshold;
    case RESERVED_MEM_CURRENT: return &pool->reserved;
    case RESERVED_MEM_HIGH: return &pool->reserved_high;
    case USED_MEM_CURRENT: return &pool->used;
    case USED_MEM_HIGH: return &pool->used_high;
    default: return NULL;
    }
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    TRY(capture_permits());
    TRY(check(pool));
    const int *option = switch_of(pool, attribute);
    const uint64_t *figure = figure_of(pool, attribute);
    if (!value || (!option && !figure)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    if (option) *(int *)value = *option;
    else *(uint64_t *)value = *figure;
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

/* High-water marks can only be reset to 0; present values cannot be set. */
static CUresult set(CUmemoryPool pool, int attribute, const void *value) {
    int *option = switch_of(pool, attribute);
    if (option) {
        *option = *(const int *)value;
        return CUDA_SUCCESS;
    }
    bool high = attribute == RESERVED_MEM_HIGH || attribute == USED_MEM_HIGH;
    if (attribute != RELEASE_THRESHOLD && (!high || *(const uint64_t *)value))
        return CUDA_ERROR_INVALID_VALUE;
    *figure_of(pool, attribute) = *(const uint64_t *)value;
    if (attribute == RESERVED_MEM_HIGH) pool->reserved_high = pool->reserved;
    if (attribute == USED_MEM_HIGH) pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, const void *value) {
    TRY(capture_permits());
    TRY(check(pool));
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = set(pool, attribute, value);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

/* Accepts any access, since every device can reach every pool. */
API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
    TRY(check(pool));
    return access || !count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location) {
    TRY(check(pool));
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_READWRITE;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    TRY(driver_device(device));
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    *pool = pool_default(device);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    TRY(driver_device(device));
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    *pool = pool_chosen(device);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    TRY(capture_permits());
    TRY(driver_device(device));
    TRY(check(pool));
    pool_choose(device, pool);
    return CUDA_SUCCESS;
}
