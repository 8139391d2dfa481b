/* Stream-ordered memory: pools keep freed memory up to a threshold. */
#include "pool.h"

#include <stdlib.h>

#include "capture.h"
#include "stream.h"

enum { MAGIC = 0x504f4f21, ENDED = 0x504f4f2d };

static CUmemoryPool pools;
static CUmemoryPool defaults[SIM_MAX_CARDS], chosen[SIM_MAX_CARDS];

/* ---- pools ---------------------------------------------------------------------------------- */

static uint64_t at_least(uint64_t value, uint64_t other) {
    return value > other ? value : other;
}

static CUmemoryPool new_pool(CUdevice device) {
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->magic = MAGIC;
    pool->device = device;
    pool->next = pools;
    pools = pool;
    return pool;
}

CUmemoryPool pool_default(CUdevice device) {
    pthread_mutex_lock(&memory_lock);
    if (!defaults[device]) defaults[device] = new_pool(device);
    pthread_mutex_unlock(&memory_lock);
    return defaults[device];
}

CUmemoryPool pool_chosen(CUdevice device) {
    return chosen[device] ? chosen[device] : pool_default(device);
}

void pool_choose(CUdevice device, CUmemoryPool pool) {
    chosen[device] = pool;
}

bool pool_valid(CUmemoryPool pool) {
    if (pool && pool->magic == ENDED) misused("a destroyed pool");
    return pool && pool->magic == MAGIC;
}

CUmemoryPool pool_create(const CUmemPoolProps *props) {
    pthread_mutex_lock(&memory_lock);
    CUmemoryPool pool = new_pool(props->location.id);
    if (pool) pool->most = props->maxSize;
    pthread_mutex_unlock(&memory_lock);
    return pool;
}

/* ---- allocation and free; the caller holds memory_lock --------------------------------------- */

static uint64_t size_in_pool(uint64_t bytes) {
    return bytes < SMALL_BYTES ? round_up(bytes, 512) : round_up(bytes, PAGE_BYTES);
}

void pool_grow(CUmemoryPool pool, uint64_t bytes) {
    pool->reserved += bytes;
    pool->reserved_high = at_least(pool->reserved_high, pool->reserved);
}

void pool_shrink(CUmemoryPool pool, uint64_t bytes) {
    pool->reserved -= bytes;
}

static void count_used(CUmemoryPool pool, uint64_t bytes) {
    pool->used += bytes;
    pool->used_high = at_least(pool->used_high, pool->used);
}

/* Reuses a free block of exactly this size. */
static struct allocation *take_cached(CUmemoryPool pool, uint64_t size) {
    for (struct allocation **link = &pool->cache; *link; link = &(*link)->cached) {
        struct allocation *found = *link;
        if (size_in_pool(found->bytes) != size) continue;
        *link = found->cached;
        found->cached = NULL;
        found->idle = false;
        return found;
    }
    return NULL;
}

static void release(CUmemoryPool pool, uint64_t keep) {
    while (pool->cache && pool->reserved > keep) {
        struct allocation *oldest = pool->cache;
        pool->cache = oldest->cached;
        memory_free(oldest);
    }
}

static CUresult take(CUcontext context, CUmemoryPool pool, uint64_t bytes,
                     struct allocation **made) {
    uint64_t size = size_in_pool(bytes);
    if ((*made = take_cached(pool, size))) {
        (*made)->bytes = bytes;
        count_used(pool, size);
        return CUDA_SUCCESS;
    }
    if (pool->most && pool->reserved + size > pool->most) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory_new_pooled(context, pool, bytes, made);
    if (result) { /* the card may have room once the pool's free memory is released */
        release(pool, 0);
        result = memory_new_pooled(context, pool, bytes, made);
    }
    if (!result) count_used(pool, size);
    return result;
}

CUresult pool_take(CUcontext context, CUmemoryPool pool, uint64_t bytes, CUdeviceptr *pointer) {
    struct allocation *made;
    pthread_mutex_lock(&memory_lock);
    CUresult result = take(context, pool, bytes ? bytes : 1, &made);
    if (!result) *pointer = made->base;
    pthread_mutex_unlock(&memory_lock);
    return result;
}

static void put_in_cache(struct allocation *allocation) {
    CUmemoryPool pool = allocation->pool;
    allocation->idle = true;
    allocation->cached = pool->cache;
    pool->cache = allocation;
    pool->used -= size_in_pool(allocation->bytes);
    if (pool->ending) release(pool, 0);
}

void pool_forget(struct allocation *allocation) {
    CUmemoryPool pool = allocation->pool;
    uint64_t size = size_in_pool(allocation->bytes);
    struct allocation **link = &pool->cache;
    while (*link && *link != allocation) link = &(*link)->cached;
    if (*link) *link = allocation->cached;
    else pool->used -= size;
}

void pool_take_back(CUdeviceptr pointer) {
    pthread_mutex_lock(&memory_lock);
    struct allocation *found = memory_find(pointer);
    if (found && found->kind == MEMORY_GRAPH) found->idle = true;
    else if (found && found->pool) put_in_cache(found);
    else if (found) memory_free(found);
    pthread_mutex_unlock(&memory_lock);
}

void pool_trim(CUmemoryPool pool, uint64_t keep) {
    pthread_mutex_lock(&memory_lock);
    release(pool, keep);
    pthread_mutex_unlock(&memory_lock);
}

void pool_trim_all(void) {
    for (CUmemoryPool pool = pools; pool; pool = pool->next) pool_trim(pool, pool->threshold);
}

/* Destroys the pool. Memory that is still allocated from it stays; the pool ends with the last of
 * it. */
void pool_end(CUmemoryPool pool) {
    pthread_mutex_lock(&memory_lock);
    pool->magic = ENDED;
    pool->ending = true;
    release(pool, 0);
    for (int device = 0; device < SIM_MAX_CARDS; device++)
        if (chosen[device] == pool) chosen[device] = NULL;
    pthread_mutex_unlock(&memory_lock);
}

/* ---- allocation in stream order -------------------------------------------------------------- */

static CUresult allocate(CUdeviceptr *pointer, uint64_t bytes, CUmemoryPool pool, CUstream handle) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return capture_alloc(stream, bytes, pointer);
    if (!pool) pool = pool_chosen(stream->context->device);
    if (!pool_valid(pool)) return CUDA_ERROR_INVALID_VALUE;
    return pool_take(stream->context, pool, bytes, pointer);
}

TWINS(cuMemAllocAsync, _ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream),
      (pointer, bytes, stream)) {
    return allocate(pointer, bytes, NULL, stream);
}

TWINS(cuMemAllocFromPoolAsync, _ptsz,
      (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),
      (pointer, bytes, pool, stream)) {
    TRY(driver_ready());
    return pool ? allocate(pointer, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

static bool may_be_freed(CUdeviceptr pointer) {
    pthread_mutex_lock(&memory_lock);
    struct allocation *found = memory_find(pointer);
    bool right = found && found->base == pointer && found->kind != MEMORY_IMPORTED &&
                 (!found->idle || found->kind == MEMORY_GRAPH);
    pthread_mutex_unlock(&memory_lock);
    return right;
}

TWINS(cuMemFreeAsync, _ptsz, (CUdeviceptr pointer, CUstream handle), (pointer, handle)) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!may_be_freed(pointer)) return CUDA_ERROR_INVALID_VALUE;
    return stream_add(stream, (struct work){.kind = WORK_FREE, .pointer = pointer});
}
