#include "memory/pools.h"

#include "base/atomics.h"
#include "base/numbers.h"
#include "lookup/relax.h"
#include "memory/alloc_table.h"
#include "memory/charge.h"
#include "memory/lazy_code.h"
#include "memory/pages.h"

/* Added to the device in place of a handle; no handle has these bits. */
#define GRAPH_POOL (UINT64_C(1) << 63)
#define NAMELESS_POOL (UINT64_C(1) << 62)

#define GRAIN_MOST (UINT64_C(64) << 20) /* bytes; no driver is known to grow pools by more */

#define ENDED UINT32_MAX /* in place of users: there are none, and none may enter */

/* ---- the table ------------------------------------------------------------------------------- */

static unsigned used(struct process *process) {
    return load_acquire(&process->pools_used);
}

static struct process_pool *pool_of(struct regions *regions, unsigned number) {
    return &regions->process->pools[number - 1];
}

static int card_of(const struct process_pool *pool) {
    return load_relaxed(&pool->card);
}

static CUdevice device_of(const struct process_pool *pool) {
    return load_relaxed(&pool->device);
}

static unsigned find(struct process *process, uint64_t handle) {
    for (unsigned place = 0; place < used(process); place++)
        if (load_seq_cst(&process->pools[place].handle) == handle) return place + 1;
    return 0;
}

static void reset(struct process_pool *pool, int card, int device) {
    __atomic_store_n(&pool->card, card, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->device, device, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->destroyed, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->apart, 0, __ATOMIC_RELAXED);
}

/*
 * Adds a pool, in the entry of an ended one if possible, which has no charge or allocations any
 * more. Returns its number; 0 if the table is full. The caller holds the lock.
 */
static unsigned add(struct process *process, uint64_t handle, int card, int device) {
    unsigned place = 0;
    while (place < used(process) && load_seq_cst(&process->pools[place].handle)) place++;
    if (place == POOLS_MAX) return 0;
    reset(&process->pools[place], card, device);
    __atomic_store_n(&process->pools[place].handle, handle, __ATOMIC_RELEASE);
    __atomic_store_n(&process->pools[place].users, 0, __ATOMIC_RELEASE);
    if (place == used(process)) __atomic_store_n(&process->pools_used, place + 1, __ATOMIC_RELEASE);
    return place + 1;
}

static unsigned find_or_add(struct regions *regions, uint64_t handle, int card, int device) {
    struct process *process = regions->process;
    unsigned number = find(process, handle);
    if (__builtin_expect(number != 0, 1)) return number;
    lock_take(&process->pool_lock);
    number = find(process, handle);
    if (!number) number = add(process, handle, card, device);
    lock_release(&process->pool_lock);
    return number;
}

unsigned pools_number(struct regions *regions, CUmemoryPool pool, int card, CUdevice device) {
    return find_or_add(regions, (uint64_t)(uintptr_t)pool, card, device);
}

unsigned pools_graph_number(struct regions *regions, CUdevice device, int card) {
    return find_or_add(regions, GRAPH_POOL + (uint64_t)device, card, device);
}

bool pools_card(struct regions *regions, CUmemoryPool pool, int *card) {
    unsigned number = find(regions->process, (uint64_t)(uintptr_t)pool);
    if (number) *card = card_of(pool_of(regions, number));
    return number != 0;
}

void pools_set_apart(struct regions *regions, unsigned number) {
    if (number) __atomic_store_n(&pool_of(regions, number)->apart, 1, __ATOMIC_RELAXED);
}

bool pools_is_apart(struct regions *regions, unsigned number) {
    return load_relaxed(&pool_of(regions, number)->apart);
}

static bool is_destroyed(const struct process_pool *pool) {
    return load_acquire(&pool->destroyed);
}

bool pools_is_gone(struct regions *regions, CUmemoryPool pool) {
    unsigned number = find(regions->process, (uint64_t)(uintptr_t)pool);
    return number && is_destroyed(pool_of(regions, number));
}

/* ---- users of a pool ------------------------------------------------------------------------- */

/*
 * Enters the pool: until leave(), its handle stays valid. Any thread may use any pool, and the
 * program may destroy one meanwhile; then its last user ends it (end_if_empty). Returns false if it
 * has ended.
 */
static bool enter(struct process_pool *pool) {
    uint32_t users = load_relaxed(&pool->users);
    do
        if (users == ENDED) return false;
    while (!__atomic_compare_exchange_n(&pool->users, &users, users + 1, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED));
    return true;
}

static void leave(struct process_pool *pool) {
    __atomic_sub_fetch(&pool->users, 1, __ATOMIC_RELEASE);
}

/*
 * Enters the pool if its entry still has the handle: another pool may have got the entry meanwhile.
 */
static bool enter_as(struct process_pool *pool, uint64_t handle) {
    if (!enter(pool)) return false;
    if (load_seq_cst(&pool->handle) == handle) return true;
    leave(pool);
    return false;
}

static unsigned find_and_enter(struct regions *regions, uint64_t handle) {
    unsigned number;
    do number = find(regions->process, handle);
    while (number && !enter_as(pool_of(regions, number), handle));
    return number;
}

static unsigned add_and_enter(struct regions *regions, uint64_t handle, int card, int device) {
    unsigned number;
    do number = find_or_add(regions, handle, card, device);
    while (number && !enter_as(pool_of(regions, number), handle));
    return number;
}

unsigned pools_enter(struct regions *regions, CUmemoryPool pool, int card, CUdevice device) {
    return add_and_enter(regions, (uint64_t)(uintptr_t)pool, card, device);
}

unsigned pools_enter_known(struct regions *regions, CUmemoryPool pool) {
    return find_and_enter(regions, (uint64_t)(uintptr_t)pool);
}

unsigned pools_enter_nameless(struct regions *regions, CUdevice device, int card) {
    return add_and_enter(regions, NAMELESS_POOL + (uint64_t)device, card, device);
}

void pools_leave(struct regions *regions, unsigned number) {
    leave(pool_of(regions, number));
}

/* ---- the charge ------------------------------------------------------------------------------ */

/*
 * The charge has a version in its low bits, so that a conclusion from an old charge cannot change a
 * newer one.
 */
#define VERSION_BITS 21

static uint64_t charged_bytes(const struct process_pool *pool) {
    return load_seq_cst(&pool->charged) >> VERSION_BITS;
}

static bool swap_charged(struct process_pool *pool, uint64_t seen, uint64_t bytes) {
    uint64_t version = (seen + 1) & ((UINT64_C(1) << VERSION_BITS) - 1);
    return __atomic_compare_exchange_n(&pool->charged, &seen, bytes << VERSION_BITS | version, false,
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void add_charged(struct process_pool *pool, uint64_t bytes) {
    uint64_t seen;
    do seen = load_seq_cst(&pool->charged);
    while (!swap_charged(pool, seen, (seen >> VERSION_BITS) + bytes));
}

/* ---- the driver's figures -------------------------------------------------------------------- */

static CUresult ask_for(const struct process_pool *pool, int of_graphs, int of_pools,
                        uint64_t *bytes) {
    uint64_t handle = load_seq_cst(&pool->handle);
    if (handle & GRAPH_POOL)
        return RELAXED(cuDeviceGetGraphMemAttribute, device_of(pool), of_graphs, bytes);
    if (handle & NAMELESS_POOL) return CUDA_ERROR_INVALID_VALUE;
    return RELAXED(cuMemPoolGetAttribute, (CUmemoryPool)(uintptr_t)handle, of_pools, bytes);
}

static CUresult ask(const struct process_pool *pool, uint64_t *reserved) {
    return ask_for(pool, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                   CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved);
}

/* The bytes that destroyed graphs may have left allocated: no more than the driver still holds. */
static uint64_t still_left(struct process_pool *pool, uint64_t seen, uint64_t reserved) {
    if (seen <= reserved) return seen;
    __atomic_compare_exchange_n(&pool->left, &seen, reserved, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return reserved;
}

/*
 * Bytes to charge for what the driver holds, or may take, for the pool: at least its live
 * allocations. For graphs, the driver may hold nothing for a live one yet, and only what destroyed
 * ones left, so both are added.
 */
static uint64_t reserved_by(struct process_pool *pool) {
    uint64_t live = load_seq_cst(&pool->live), left = load_seq_cst(&pool->left), reserved = 0;
    if (ask(pool, &reserved) != CUDA_SUCCESS) return live + left;
    return larger(live + still_left(pool, left, reserved), reserved);
}

/* Makes the driver release unused memory of the pool, down to `keep` bytes. */
static void trim(const struct process_pool *pool, uint64_t keep) {
    uint64_t handle = load_seq_cst(&pool->handle);
    if (handle & GRAPH_POOL)
        RELAXED(cuDeviceGraphMemTrim, device_of(pool));
    else if (!(handle & NAMELESS_POOL))
        RELAXED(cuMemPoolTrimTo, (CUmemoryPool)(uintptr_t)handle, keep);
}

/* Raises the charge to `bytes`; with `force` also beyond the limit. */
static bool raise_to(struct regions *regions, struct process_pool *pool, uint64_t bytes,
                     bool force) {
    uint64_t charged = charged_bytes(pool);
    if (charged >= bytes) return true;
    uint64_t more = bytes - charged;
    if (force)
        charge_force(regions, card_of(pool), more);
    else if (!charge_within_limit(regions, card_of(pool), more))
        return false;
    add_charged(pool, more);
    return true;
}

static bool is_of_graphs(const struct process_pool *pool) {
    return load_seq_cst(&pool->handle) & GRAPH_POOL;
}

/*
 * Updates the bytes that are charged for graphs but not on the card: graphs are charged when they
 * are instantiated, and get memory when they are launched.
 */
static void tell_absent(struct regions *regions, struct process_pool *pool) {
    uint64_t reserved = 0;
    if (!is_of_graphs(pool)) return;
    lock_take(&regions->process->pool_lock);
    ask(pool, &reserved);
    uint64_t charged = charged_bytes(pool), bytes = charged - smaller(charged, reserved);
    bool came = bytes < pool->absent;
    charge_absent(regions, card_of(pool), (int64_t)(bytes - pool->absent));
    pool->absent = bytes;
    lock_release(&regions->process->pool_lock);
    /* So that the agent asks NVML again, and no longer takes this memory for code. */
    if (came) lazy_code_count(regions, card_of(pool));
}

/* Lowers the charge to what the driver holds, and may take for allocations in progress. */
static void lower(struct regions *regions, struct process_pool *pool) {
    uint64_t seen = load_seq_cst(&pool->charged), pending = load_seq_cst(&pool->pending);
    uint64_t bytes = reserved_by(pool) + pending, charged = seen >> VERSION_BITS;
    if (bytes < charged && swap_charged(pool, seen, bytes))
        charge_release(regions, card_of(pool), charged - bytes);
    tell_absent(regions, pool);
}

/* ---- allocations ----------------------------------------------------------------------------- */

static uint64_t *grain(struct regions *regions, const struct process_pool *pool) {
    return &regions->process->cards[card_of(pool)].pool_grain;
}

static bool take(struct regions *regions, struct process_pool *pool, uint64_t bytes) {
    if (!charge_within_limit(regions, card_of(pool), bytes)) return false;
    __atomic_add_fetch(&pool->pending, bytes, __ATOMIC_SEQ_CST);
    add_charged(pool, bytes);
    return true;
}

static bool take_absent(struct regions *regions, struct process_pool *pool, uint64_t bytes) {
    lock_take(&regions->process->pool_lock);
    charge_absent(regions, card_of(pool), (int64_t)bytes);
    bool taken = take(regions, pool, bytes);
    if (taken) pool->absent += bytes;
    else charge_absent(regions, card_of(pool), -(int64_t)bytes);
    lock_release(&regions->process->pool_lock);
    return taken;
}

/*
 * Reserves what the pool may grow by for an allocation, and sets *wanted to that: whole pages, and
 * as much in addition as pools of this card have grown before. All of it is pending until the
 * driver's figure is known.
 */
static bool reserve(struct regions *regions, struct process_pool *pool, uint64_t bytes,
                    uint64_t *wanted) {
    uint64_t taken = load_seq_cst(&pool->live) + load_seq_cst(&pool->pending) + pages_whole(bytes);
    uint64_t beyond = taken > charged_bytes(pool) ? load_seq_cst(grain(regions, pool)) : 0;
    *wanted = pages_whole(bytes) + beyond;
    return is_of_graphs(pool) ? take_absent(regions, pool, *wanted) : take(regions, pool, *wanted);
}

static void learn_grain(struct regions *regions, const struct process_pool *pool,
                        uint64_t reserved) {
    uint64_t charged = charged_bytes(pool), *known = grain(regions, pool);
    uint64_t beyond = reserved > charged ? reserved - charged : 0;
    if (beyond > GRAIN_MOST) beyond = GRAIN_MOST;
    if (beyond > load_seq_cst(known)) __atomic_store_n(known, beyond, __ATOMIC_RELAXED);
}

/*
 * If there is no room, first shrinks pools by what is missing at most, and then by all that they
 * keep.
 */
uint64_t pools_allocate(struct regions *regions, unsigned number, uint64_t bytes, uint64_t *waited) {
    struct process_pool *pool = pool_of(regions, number);
    uint64_t wanted;
    if (reserve(regions, pool, bytes, &wanted)) return wanted;
    if (pools_shrink(regions, card_of(pool), wanted) && reserve(regions, pool, bytes, &wanted))
        return wanted;
    if (pools_shrink(regions, card_of(pool), POOLS_ALL) && reserve(regions, pool, bytes, &wanted))
        return wanted;
    if (lazy_code_await_look(regions, card_of(pool), wanted, waited) &&
        reserve(regions, pool, bytes, &wanted))
        return wanted;
    return 0;
}

static void mark_dirty(struct regions *regions, struct process_pool *pool) {
    __atomic_store_n(&pool->dirty, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&regions->process->pools_dirty, 1, __ATOMIC_RELAXED);
}

/* Turns pending bytes into live ones. They may count as both for a moment. */
static void begin_to_live(struct process_pool *pool, uint64_t bytes, uint64_t reserved) {
    __atomic_add_fetch(&pool->live, bytes, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&pool->pending, reserved, __ATOMIC_SEQ_CST);
}

bool pools_allocated(struct regions *regions, unsigned number, uint64_t bytes, uint64_t reserved) {
    struct process_pool *pool = pool_of(regions, number);
    uint64_t held = reserved_by(pool);
    learn_grain(regions, pool, held);
    if (!raise_to(regions, pool, held, false)) return false;
    begin_to_live(pool, bytes, reserved);
    lower(regions, pool);
    if (is_of_graphs(pool)) mark_dirty(regions, pool); /* launches take the memory later */
    return true;
}

void pools_cancel(struct regions *regions, unsigned number, uint64_t reserved, bool grown) {
    struct process_pool *pool = pool_of(regions, number);
    if (grown) trim(pool, 0);
    __atomic_sub_fetch(&pool->pending, reserved, __ATOMIC_SEQ_CST);
    raise_to(regions, pool, reserved_by(pool), true); /* memory that was not trimmed is charged */
    lower(regions, pool);
}

/*
 * Lowers the live bytes, never below 0, even if a program resets a device that it still allocates
 * on.
 */
static void end_to_live(struct process_pool *pool, uint64_t bytes) {
    uint64_t live = load_seq_cst(&pool->live);
    while (!__atomic_compare_exchange_n(&pool->live, &live, live > bytes ? live - bytes : 0, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
}

void pools_freed(struct regions *regions, unsigned number, uint64_t bytes) {
    struct process_pool *pool = pool_of(regions, number);
    end_to_live(pool, bytes);
    mark_dirty(regions, pool);
}

/* Raises `left` before it lowers `live`, so that the memory is counted at every moment. */
void pools_graph_gone(struct regions *regions, unsigned number, uint64_t bytes) {
    struct process_pool *pool = pool_of(regions, number);
    __atomic_add_fetch(&pool->left, bytes, __ATOMIC_SEQ_CST);
    end_to_live(pool, bytes);
    mark_dirty(regions, pool);
}

/* ---- the end of a pool ----------------------------------------------------------------------- */

static bool is_unused(const struct process_pool *pool) {
    return !load_seq_cst(&pool->live) && !charged_bytes(pool);
}

/* Ends the pool if the caller is its only user and it is unused. Returns whether it did. */
static bool close_if_alone(struct process_pool *pool) {
    uint32_t alone = 1;
    if (!__atomic_compare_exchange_n(&pool->users, &alone, ENDED, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return false;
    if (is_unused(pool)) return true;
    __atomic_store_n(&pool->users, 1, __ATOMIC_RELEASE); /* an earlier user has taken memory */
    return false;
}

/*
 * Ends a destroyed pool that has no memory. The caller has entered it, and has left it if it ends.
 * The number is freed before the driver may reuse the handle.
 */
static bool end_if_empty(struct process_pool *pool) {
    uint64_t handle = load_seq_cst(&pool->handle), reserved = 0;
    if (!is_destroyed(pool) || !is_unused(pool)) return false;
    if (ask(pool, &reserved) == CUDA_SUCCESS && reserved) return false;
    if (!close_if_alone(pool)) return false;
    __atomic_store_n(&pool->handle, 0, __ATOMIC_RELEASE);
    RELAXED(cuMemPoolDestroy, (CUmemoryPool)(uintptr_t)handle);
    return true;
}

static bool is_default(const struct process_pool *pool, CUmemoryPool *usual) {
    return RELAXED(cuDeviceGetDefaultMemPool, usual, device_of(pool)) == CUDA_SUCCESS &&
           load_seq_cst(&pool->handle) == (uint64_t)(uintptr_t)*usual;
}

/*
 * Makes the pool keep no memory, and its device use the default pool again, as if it were
 * destroyed.
 */
static void retire(const struct process_pool *pool, CUmemoryPool handle, CUmemoryPool usual) {
    uint64_t nothing = 0;
    CUmemoryPool present;
    RELAXED(cuMemPoolSetAttribute, handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
    if (RELAXED(cuDeviceGetMemPool, &present, device_of(pool)) == CUDA_SUCCESS && present == handle)
        RELAXED(cuDeviceSetMemPool, device_of(pool), usual);
}

/*
 * Marks the pool as destroyed. Returns false for a device's default pool, for which the driver is
 * to be called. The caller has entered it.
 */
static bool destroy(struct regions *regions, struct process_pool *pool, CUmemoryPool handle,
                    CUresult *result) {
    CUmemoryPool usual = NULL;
    if (is_default(pool, &usual)) return false;
    bool before = __atomic_exchange_n(&pool->destroyed, 1, __ATOMIC_ACQ_REL);
    *result = before ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (before) return true;
    retire(pool, handle, usual);
    trim(pool, 0);
    mark_dirty(regions, pool);
    return true;
}

bool pools_destroy(struct regions *regions, CUmemoryPool handle, CUresult *result) {
    unsigned number = pools_enter_known(regions, handle);
    bool done = number && destroy(regions, pool_of(regions, number), handle, result);
    if (number) pools_leave(regions, number);
    if (done) pools_settle(regions);
    return done;
}

/* ---- giving memory back ---------------------------------------------------------------------- */

/*
 * Whether the charge may change without a call that is counted. Graphs take memory when they are
 * launched, perhaps more than their nodes' attributes say.
 */
static bool may_change(const struct process_pool *pool) {
    return charged_bytes(pool) > load_seq_cst(&pool->live) || is_destroyed(pool) ||
           (is_of_graphs(pool) && load_seq_cst(&pool->live));
}

static void settle(struct regions *regions, struct process_pool *pool) {
    if (!enter(pool)) return;
    if (is_destroyed(pool)) trim(pool, 0);
    raise_to(regions, pool, reserved_by(pool), true);
    lower(regions, pool);
    if (end_if_empty(pool)) return;
    /*
     * Until the next wait, memory may be released or taken, and other threads may be in the pool.
     */
    if (may_change(pool)) mark_dirty(regions, pool);
    leave(pool);
}

void pools_settle(struct regions *regions) {
    __atomic_store_n(&regions->process->pools_dirty, 0, __ATOMIC_RELAXED);
    for (unsigned place = 0; place < used(regions->process); place++) {
        struct process_pool *pool = &regions->process->pools[place];
        if (load_seq_cst(&pool->handle) && __atomic_exchange_n(&pool->dirty, 0, __ATOMIC_RELAXED))
            settle(regions, pool);
    }
}

bool pools_keeps(struct regions *regions, unsigned number) {
    const struct process_pool *pool = pool_of(regions, number);
    uint64_t handle = load_seq_cst(&pool->handle), threshold = 0;
    return charged_bytes(pool) > load_seq_cst(&pool->live) && !(handle & (GRAPH_POOL | NAMELESS_POOL)) &&
           RELAXED(cuMemPoolGetAttribute, (CUmemoryPool)(uintptr_t)handle,
                                       CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                       &threshold) == CUDA_SUCCESS &&
           threshold;
}

bool pools_shrink(struct regions *regions, int card, uint64_t bytes) {
    bool shrunk = false;
    for (unsigned place = 0; place < used(regions->process); place++) {
        struct process_pool *pool = &regions->process->pools[place];
        uint64_t before = charged_bytes(pool);
        if (!load_seq_cst(&pool->handle) || card_of(pool) != card || before <= load_seq_cst(&pool->live)) continue;
        if (!enter(pool)) continue;
        trim(pool, bytes < before ? before - bytes : 0);
        lower(regions, pool);
        leave(pool);
        shrunk = charged_bytes(pool) < before || shrunk;
    }
    return shrunk;
}

/* ---- the end of a context -------------------------------------------------------------------- */

struct sweep {
    struct regions *regions;
    unsigned number;
};

static void forget(uint64_t key, const struct alloc *alloc, void *context) {
    const struct sweep *sweep = context;
    (void)key;
    pools_freed(sweep->regions, sweep->number, alloc->bytes);
}

/* Whether the driver reports no memory in use in the pool. */
static bool is_empty(const struct process_pool *pool) {
    uint64_t bytes = 0;
    CUresult result = ask_for(pool, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
                              CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes);
    return result == CUDA_SUCCESS && !bytes;
}

/*
 * The driver is asked for each allocation, since other threads may allocate from the pool
 * meanwhile.
 */
static bool is_of_pool(const struct alloc *alloc, void *context) {
    const struct sweep *sweep = context;
    return alloc->kind == ALLOC_POOLED && alloc->owner == sweep->number &&
           is_empty(pool_of(sweep->regions, sweep->number));
}

/*
 * Whether the pool's allocations may have ended with a context of the device. Graphs have no memory
 * before they are launched, so only the end of the primary context shows that they are gone.
 */
static bool may_be_gone(const struct process_pool *pool, CUdevice device, bool primary) {
    uint64_t handle = load_seq_cst(&pool->handle);
    return handle && (primary || !(handle & GRAPH_POOL)) && load_seq_cst(&pool->live) &&
           device_of(pool) == device && is_empty(pool);
}

void pools_context_gone(struct regions *regions, CUdevice device, bool primary) {
    for (unsigned place = 0; place < used(regions->process); place++) {
        struct process_pool *pool = &regions->process->pools[place];
        struct sweep sweep = {regions, place + 1};
        if (!enter(pool)) continue;
        if (may_be_gone(pool, device, primary))
            alloc_table_sweep(regions->process, is_of_pool, forget, &sweep);
        leave(pool);
    }
    pools_settle(regions);
}
