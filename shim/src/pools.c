#include "pools.h"

#include "account.h"
#include "resolve.h"

/* Plus the device: no handle has these bits. */
#define GRAPH_POOL (UINT64_C(1) << 63)
#define NAMELESS_POOL (UINT64_C(1) << 62)

/* ---- the table ----------------------------------------------------------------------------------- */

static unsigned used(struct process *process) {
    return __atomic_load_n(&process->pools_used, __ATOMIC_ACQUIRE);
}

static struct process_pool *pool_of(struct regions *regions, unsigned number) {
    return &regions->process->pools[number - 1];
}

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static unsigned find(struct process *process, uint64_t handle) {
    for (unsigned place = 0; place < used(process); place++)
        if (load(&process->pools[place].handle) == handle) return place + 1;
    return 0;
}

/* The caller holds the lock. */
static unsigned add(struct process *process, uint64_t handle, int card, int device) {
    unsigned place = 0;
    while (place < used(process) && load(&process->pools[place].handle)) place++;
    if (place == POOLS_MAX) return 0;
    process->pools[place] = (struct process_pool){.card = card, .device = device};
    __atomic_store_n(&process->pools[place].handle, handle, __ATOMIC_RELEASE);
    if (place == used(process)) __atomic_store_n(&process->pools_used, place + 1, __ATOMIC_RELEASE);
    return place + 1;
}

static unsigned find_or_add(struct regions *regions, uint64_t handle, int card, int device) {
    struct process *process = regions->process;
    unsigned number = find(process, handle);
    if (__builtin_expect(number != 0, 1)) return number;
    process_lock(&process->pool_lock);
    number = find(process, handle);
    if (!number) number = add(process, handle, card, device);
    process_unlock(&process->pool_lock);
    return number;
}

unsigned pools_number(struct regions *regions, CUmemoryPool pool, int card) {
    return find_or_add(regions, (uint64_t)(uintptr_t)pool, card, -1);
}

unsigned pools_graph_number(struct regions *regions, CUdevice device, int card) {
    return find_or_add(regions, GRAPH_POOL + (uint64_t)device, card, device);
}

unsigned pools_nameless_number(struct regions *regions, CUdevice device, int card) {
    return find_or_add(regions, NAMELESS_POOL + (uint64_t)device, card, device);
}

void pools_add(struct regions *regions, CUmemoryPool pool, int card) {
    pools_number(regions, pool, card);
}

bool pools_card(struct regions *regions, CUmemoryPool pool, int *card) {
    unsigned number = find(regions->process, (uint64_t)(uintptr_t)pool);
    if (number) *card = pool_of(regions, number)->card;
    return number != 0;
}

/* ---- what the driver says ------------------------------------------------------------------------ */

static CUresult ask(const struct process_pool *pool, uint64_t *reserved) {
    uint64_t handle = load(&pool->handle);
    if (handle & GRAPH_POOL)
        return REAL(cuDeviceGetGraphMemAttribute)(
            pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, reserved);
    if (handle & NAMELESS_POOL || pool->destroyed) return CUDA_ERROR_INVALID_VALUE;
    return REAL(cuMemPoolGetAttribute)((CUmemoryPool)(uintptr_t)handle,
                                       CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved);
}

/* Bytes that the driver holds for the pool; at least what lives in it. */
static uint64_t reserved_by(const struct process_pool *pool) {
    uint64_t live = load(&pool->live), reserved = 0;
    return ask(pool, &reserved) == CUDA_SUCCESS && reserved > live ? reserved : live;
}

static void raise_to(struct regions *regions, struct process_pool *pool, uint64_t bytes) {
    uint64_t charged = load(&pool->charged);
    while (charged < bytes) {
        if (!__atomic_compare_exchange_n(&pool->charged, &charged, bytes, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            continue;
        account_force(regions, pool->card, bytes - charged);
        return;
    }
}

/*
 * Lowers the charge to what the driver holds. An allocation that slipped in between (it saw the
 * higher charge and took nothing) is made good at once.
 */
static void lower(struct regions *regions, struct process_pool *pool) {
    uint64_t charged = load(&pool->charged), bytes = reserved_by(pool);
    if (bytes >= charged) return;
    if (!__atomic_compare_exchange_n(&pool->charged, &charged, bytes, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
        return;
    account_release(regions, pool->card, charged - bytes);
    raise_to(regions, pool, load(&pool->live));
}

static void forget_if_done(struct process_pool *pool) {
    if (pool->destroyed && !load(&pool->live) && !load(&pool->charged))
        __atomic_store_n(&pool->handle, 0, __ATOMIC_RELEASE);
}

/* ---- allocations --------------------------------------------------------------------------------- */

bool pools_allocate(struct regions *regions, unsigned number, uint64_t bytes) {
    struct process_pool *pool = pool_of(regions, number);
    uint64_t live = __atomic_add_fetch(&pool->live, bytes, __ATOMIC_SEQ_CST);
    uint64_t charged = load(&pool->charged);
    if (live <= charged) return true;
    if (account_reserve(regions, pool->card, live - charged) ||
        (pools_shrink(regions, pool->card) &&
         account_reserve(regions, pool->card, live - charged))) {
        __atomic_add_fetch(&pool->charged, live - charged, __ATOMIC_SEQ_CST);
        return true;
    }
    __atomic_sub_fetch(&pool->live, bytes, __ATOMIC_SEQ_CST);
    return false;
}

/* Asked only when the pool is full: then it has just grown, perhaps by more than was wanted. */
void pools_allocated(struct regions *regions, unsigned number) {
    struct process_pool *pool = pool_of(regions, number);
    if (load(&pool->live) >= load(&pool->charged)) raise_to(regions, pool, reserved_by(pool));
}

static void mark_dirty(struct regions *regions, struct process_pool *pool) {
    __atomic_store_n(&pool->dirty, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&regions->process->pools_dirty, 1, __ATOMIC_RELAXED);
}

void pools_freed(struct regions *regions, unsigned number, uint64_t bytes) {
    struct process_pool *pool = pool_of(regions, number);
    __atomic_sub_fetch(&pool->live, bytes, __ATOMIC_SEQ_CST);
    mark_dirty(regions, pool);
    if (pool->destroyed) {
        lower(regions, pool);
        forget_if_done(pool);
    }
}

void pools_cancel(struct regions *regions, unsigned number, uint64_t bytes) {
    struct process_pool *pool = pool_of(regions, number);
    __atomic_sub_fetch(&pool->live, bytes, __ATOMIC_SEQ_CST);
    lower(regions, pool);
}

/* ---- giving back --------------------------------------------------------------------------------- */

void pools_settle(struct regions *regions) {
    __atomic_store_n(&regions->process->pools_dirty, 0, __ATOMIC_RELAXED);
    for (unsigned place = 0; place < used(regions->process); place++) {
        struct process_pool *pool = &regions->process->pools[place];
        if (!load(&pool->handle) || !__atomic_exchange_n(&pool->dirty, 0, __ATOMIC_RELAXED))
            continue;
        lower(regions, pool);
        /* More may come back at the next wait. */
        if (load(&pool->charged) > load(&pool->live)) mark_dirty(regions, pool);
    }
}

void pools_destroyed(struct regions *regions, CUmemoryPool handle) {
    unsigned number = find(regions->process, (uint64_t)(uintptr_t)handle);
    if (!number) return;
    struct process_pool *pool = pool_of(regions, number);
    pool->destroyed = 1;
    lower(regions, pool);
    forget_if_done(pool);
}

static void trim(const struct process_pool *pool) {
    uint64_t handle = load(&pool->handle);
    if (handle & GRAPH_POOL)
        REAL(cuDeviceGraphMemTrim)(pool->device);
    else if (!(handle & NAMELESS_POOL) && !pool->destroyed)
        REAL(cuMemPoolTrimTo)((CUmemoryPool)(uintptr_t)handle, 0);
}

bool pools_shrink(struct regions *regions, int card) {
    bool shrunk = false;
    for (unsigned place = 0; place < used(regions->process); place++) {
        struct process_pool *pool = &regions->process->pools[place];
        uint64_t before = load(&pool->charged);
        if (!load(&pool->handle) || pool->card != card || before <= load(&pool->live)) continue;
        trim(pool);
        lower(regions, pool);
        shrunk = shrunk || load(&pool->charged) < before;
    }
    return shrunk;
}
