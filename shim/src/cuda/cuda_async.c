/*
 * Stream-ordered memory, from the pool of the stream's device or from a given one. Most entry
 * points have a twin for the per-thread default stream.
 */
#include <time.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "base/sys.h"
#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/alloc_table.h"
#include "memory/allocation.h"
#include "memory/lent_card.h"
#include "memory/charge.h"
#include "memory/deferred_free.h"
#include "memory/pools.h"
#include "memory/stand_in.h"
#include "region/enter.h"
#include "time/stream_credit.h"

static CUresult undo(uint64_t pointer) {
    return RELAXED(cuMemFree_v2, pointer);
}

/* Whether the stream is being captured. `twin`: the entry point's default stream is per-thread. */
static bool capturing(CUstream stream, bool twin) {
    int status = 0;
    CUstream meant = (CUstream)stream_credit_name(stream, twin);
    return REAL(cuStreamIsCapturing)(meant, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUmemoryPool present_pool(CUdevice device) {
    CUmemoryPool pool;
    return RELAXED(cuDeviceGetMemPool, &pool, device) == CUDA_SUCCESS ? pool : NULL;
}

/*
 * Enters the device's present pool. All pools that the program made are known, so an unknown one is
 * the default pool or was destroyed just now. To tell these apart, the driver is asked for the
 * present pool again.
 */
static unsigned enter_present_pool(struct regions *regions, CUdevice device, int card) {
    CUmemoryPool pool = present_pool(device);
    unsigned number = 0;
    while (pool && !(number = pools_enter_known(regions, pool))) {
        CUmemoryPool before = pool;
        pool = present_pool(device);
        if (pool == before) return pools_enter(regions, pool, card, device);
    }
    return pool ? number : pools_enter_nameless(regions, device, card);
}

/*
 * The device of a pool that the program did not make. A default pool counts to its own device,
 * whatever device the stream belongs to. Any other unknown pool was destroyed just now, and counts
 * to the stream's device.
 */
static CUresult device_of_pool(CUmemoryPool pool, CUstream stream, CUdevice *device) {
    CUmemoryPool usual;
    for (CUdevice one = 0; RELAXED(cuDeviceGetDefaultMemPool, &usual, one) == CUDA_SUCCESS; one++) {
        *device = one;
        if (usual == pool) return CUDA_SUCCESS;
    }
    return cards_stream_device(stream, device);
}

/*
 * Enters `pool`, or if that is NULL, the present pool of the stream's device. *number is 0 if the
 * limits do not name its device, or there are too many pools. *card: the pool's card.
 */
static CUresult enter_pool(struct regions *regions, CUmemoryPool pool, CUstream stream, int *card,
                          unsigned *number) {
    CUdevice device;
    if (pool && pools_is_gone(regions, pool)) return CUDA_ERROR_INVALID_VALUE;
    if (pool && pools_card(regions, pool, card)) {
        *number = pools_enter(regions, pool, *card, -1);
        return CUDA_SUCCESS;
    }
    CUresult result = pool ? device_of_pool(pool, stream, &device)
                           : cards_stream_device(stream, &device);
    if (result != CUDA_SUCCESS) return result;
    *card = cards_of_device(regions, device);
    if (*card == CARD_NONE)
        *number = 0;
    else
        *number = pool ? pools_enter(regions, pool, *card, device)
                       : enter_present_pool(regions, device, *card);
    return CUDA_SUCCESS;
}

struct pooled {
    struct regions *regions;
    CUstream stream;
    size_t bytes; /* as requested */
    struct alloc alloc;
    uint64_t reserved; /* bytes; 0: not counted; else the thread has entered the pool */
    uint64_t waited;   /* ns spent waiting for the agent: lazy_code.h */
};

#define PATIENCE UINT64_C(1000000000) /* ns for which comes_to_rest() waits */

/*
 * Waits until the stream has finished all work, so that pools can release memory that was freed in
 * it. Returns whether it did: gives up after a second, since the stream may be waiting for this
 * very thread.
 */
static bool comes_to_rest(CUstream stream) {
    uint64_t until = clock_now() + PATIENCE;
    while (clock_now() < until) {
        CUresult result = RELAXED(cuStreamQuery, stream);
        if (result != CUDA_ERROR_NOT_READY) return result == CUDA_SUCCESS;
        sys_sleep(50);
    }
    return false;
}

/*
 * Whether the driver says that a pool which the program did not make has memory of the host: its default
 * pool since CUDA 13.0. Older drivers do not know the attribute, and have no such pool.
 */
static bool is_default_host_pool(CUmemoryPool pool) {
    int where = 0, type = 0;
    return RELAXED(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &where) == CUDA_SUCCESS &&
           RELAXED(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type) == CUDA_SUCCESS &&
           where >= CU_MEM_LOCATION_TYPE_HOST && where <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT &&
           type != CU_MEM_ALLOCATION_TYPE_MANAGED;
}

static bool is_host_pool(struct regions *regions, CUmemoryPool pool) {
    int card;
    if (!pool) return false;
    return pools_card(regions, pool, &card) ? card == CARD_NONE : is_default_host_pool(pool);
}

static bool allowed(struct pooled *pooled) {
    const struct alloc *alloc = &pooled->alloc;
    pooled->reserved = pools_allocate(pooled->regions, alloc->owner, alloc->bytes, &pooled->waited);
    return pooled->reserved;
}

static CUresult reserve(struct pooled *pooled, CUmemoryPool pool, CUstream stream) {
    struct alloc *alloc = &pooled->alloc;
    *alloc = (struct alloc){.bytes = charge_size(larger(pooled->bytes, 1)), .kind = ALLOC_POOLED};
    CUresult result = enter_pool(pooled->regions, pool, stream, &alloc->card, &alloc->owner);
    if (result != CUDA_SUCCESS) return result;
    if (!alloc->owner) return CUDA_ERROR_OUT_OF_MEMORY;
    bool done = allowed(pooled) || (pools_keeps(pooled->regions, alloc->owner) &&
                                    comes_to_rest(pooled->stream) && allowed(pooled));
    if (done) lent_card_await(pooled->regions, alloc->card, alloc->bytes);
    else pools_leave(pooled->regions, alloc->owner);
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Reserves memory. Nothing is reserved for memory of a host pool, or for an allocation that is
 * captured into a graph, which is counted when the graph is instantiated.
 */
static CUresult begin(struct pooled *pooled, size_t bytes, CUmemoryPool pool, CUstream stream,
                      bool twin) {
    *pooled = (struct pooled){.stream = (CUstream)stream_credit_name(stream, twin), .bytes = bytes};
    CUresult result = shim_enter(&pooled->regions);
    if (result != CUDA_SUCCESS || !pooled->regions) return result;
    if (capturing(stream, twin) || is_host_pool(pooled->regions, pool)) return CUDA_SUCCESS;
    return reserve(pooled, pool, stream);
}

static bool settle(struct pooled *pooled, CUdeviceptr pointer) {
    struct process *process = pooled->regions->process;
    struct alloc unused, *alloc = &pooled->alloc;
    if (!alloc_table_put(process, pointer, *alloc)) return false;
    if (pools_allocated(pooled->regions, alloc->owner, alloc->bytes, pooled->reserved)) return true;
    alloc_table_take(process, pointer, &unused);
    return false;
}

/*
 * Allocates managed memory in place of the pool's, as if the program had called cuMemAllocManaged.
 */
static CUresult stand_in(const struct pooled *pooled, CUdeviceptr *pointer) {
    struct allocation allocation;
    CUresult result = allocation_reserve_memory(&allocation, pooled->bytes);
    if (result != CUDA_SUCCESS) return result;
    result = CUDA_ERROR_OUT_OF_MEMORY; /* the context's card may be another one than the pool's */
    if (stand_in_wanted(&allocation, result)) result = stand_in_allocate(&allocation, pointer, pooled->bytes);
    return allocation_settle(&allocation, result, *pointer, undo);
}

static CUresult stand_in_there(const struct pooled *pooled, CUdeviceptr *pointer) {
    CUcontext context = cards_context(pooled->stream), popped;
    if (!context || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = stand_in(pooled, pointer);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

static bool may_have_stand_in(const struct pooled *pooled, CUresult result) {
    const struct alloc *alloc = &pooled->alloc;
    return result == CUDA_ERROR_OUT_OF_MEMORY && stand_in_allowed(pooled->regions, alloc->card) &&
           !pools_is_apart(pooled->regions, alloc->owner);
}

static CUresult conclude(struct pooled *pooled, CUresult result, CUdeviceptr *pointer) {
    struct alloc *alloc = &pooled->alloc;
    bool made = result == CUDA_SUCCESS;
    if (made && settle(pooled, *pointer)) return result;
    if (made) undo(*pointer);
    pools_cancel(pooled->regions, alloc->owner, pooled->reserved, made);
    if (made) return CUDA_ERROR_OUT_OF_MEMORY;
    return may_have_stand_in(pooled, result) ? stand_in_there(pooled, pointer) : result;
}

static CUresult end(struct pooled *pooled, CUresult result, CUdeviceptr *pointer) {
    if (!pooled->reserved) return result;
    result = conclude(pooled, result, pointer);
    pools_leave(pooled->regions, pooled->alloc.owner);
    return result;
}

#define ALLOC_ASYNC(symbol, twin)                                                         \
    EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUstream stream) {         \
        struct pooled pooled;                                                             \
        CUresult result = begin(&pooled, bytes, NULL, stream, twin);                      \
        if (result != CUDA_SUCCESS) return result;                                        \
        return end(&pooled, REAL(symbol)(pointer, bytes, stream), pointer);               \
    }

#define ALLOC_FROM_POOL(symbol, twin)                                                     \
    EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,         \
                           CUstream stream) {                                             \
        struct pooled pooled;                                                             \
        CUresult result = begin(&pooled, bytes, pool, stream, twin);                      \
        if (result != CUDA_SUCCESS) return result;                                        \
        return end(&pooled, REAL(symbol)(pointer, bytes, pool, stream), pointer);         \
    }

/*
 * Whether the driver refused a stand-in because it cannot free managed memory in stream order. Then
 * the shim frees it.
 */
static bool frees_no_stand_in(const struct alloc *alloc, CUresult result) {
    return alloc->stand_in &&
           (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED);
}

/*
 * Memory that is freed to a pool stays charged to the pool. Other memory is given back when the
 * stream has reached the free.
 */
static CUresult finish_free(struct allocation *allocation, CUresult result, CUdeviceptr pointer,
                            CUstream stream) {
    bool deferred = allocation->reserved && allocation->alloc.kind != ALLOC_POOLED;
    if (deferred && result == CUDA_SUCCESS)
        deferred_free_add(allocation->regions, stream, pointer, &allocation->alloc, false);
    else if (deferred && frees_no_stand_in(&allocation->alloc, result) &&
             deferred_free_add(allocation->regions, stream, pointer, &allocation->alloc, true))
        result = CUDA_SUCCESS;
    else
        allocation_finish_free(allocation, result, pointer);
    return result;
}

/* A free that is captured into a graph frees nothing now. */
#define FREE_ASYNC(symbol, twin)                                                                      \
    EXPORT CUresult symbol(CUdeviceptr pointer, CUstream stream) {                                    \
        struct allocation allocation;                                                                 \
        if (capturing(stream, twin)) return REAL(symbol)(pointer, stream);                            \
        allocation_lift(&allocation, pointer);                                                        \
        CUresult result = REAL(symbol)(pointer, stream);                                              \
        return finish_free(&allocation, result, pointer, (CUstream)stream_credit_name(stream, twin)); \
    }

ALLOC_ASYNC(cuMemAllocAsync, false)
ALLOC_ASYNC(cuMemAllocAsync_ptsz, true)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync, false)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, true)
FREE_ASYNC(cuMemFreeAsync, false)
FREE_ASYNC(cuMemFreeAsync_ptsz, true)
