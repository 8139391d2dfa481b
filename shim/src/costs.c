#include "costs.h"

#include "regions.h"

#define AT_LEAST 500    /* ns: no launch is for nothing */
#define GROUP 256       /* samples */
#define VARYING 2       /* times the least: then the mean is what counts */
#define WILD_FACTOR 4   /* between the mean and the least ... */
#define WILD_NS 2000000 /* ... and so long at times: more than a change of processes takes */

struct cost costs[COSTS_MAX];

static uint32_t used;

/* Of those who write. A forked child must not find it taken for ever, where that matters. */
static uint32_t *lock_of(void) {
    static uint32_t lone;
    struct regions *regions = __atomic_load_n(&regions_current, __ATOMIC_ACQUIRE);
    return regions && regions->process ? &regions->process->costs_lock : &lone;
}

static void store(int64_t *word, uint64_t value) {
    __atomic_store_n(word, (int64_t)value, __ATOMIC_RELAXED);
}

/* Handles come and go: when there were very many of them, those that are there are learned anew. */
static void forget_all(void) {
    for (unsigned i = 0; i < COSTS_MAX; i++) {
        costs[i].samples = 0;
        store(&costs[i].ns, 0);
        __atomic_store_n(&costs[i].work, NULL, __ATOMIC_RELEASE);
    }
    used = 0;
}

static struct cost *enter(const void *work) {
    struct cost *entry = costs_place(work);
    if (entry->work) return entry;
    if (++used > COSTS_MAX / 2) {
        forget_all();
        entry = costs_place(work);
    }
    entry->samples = 0;
    store(&entry->ns, 0);
    __atomic_store_n(&entry->work, work, __ATOMIC_RELEASE);
    return entry;
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void begin_group(struct cost *entry) {
    bool first = !entry->samples;
    entry->sum[1] = entry->sum[0];
    entry->low[1] = first ? UINT64_MAX : entry->low[0];
    entry->high[1] = first ? 0 : entry->high[0];
    entry->sum[0] = entry->high[0] = 0;
    entry->low[0] = UINT64_MAX;
}

static void add_sample(struct cost *entry, uint64_t ns) {
    if (entry->samples % GROUP == 0) begin_group(entry);
    entry->sum[0] += ns;
    entry->low[0] = smaller(entry->low[0], ns);
    entry->high[0] = larger(entry->high[0], ns);
    entry->samples++;
}

static uint64_t mean(const struct cost *entry) {
    uint64_t now = (entry->samples - 1) % GROUP + 1, before = entry->samples > GROUP ? GROUP : 0;
    return (entry->sum[0] + entry->sum[1]) / (now + before);
}

/*
 * The least that was seen of late: what a neighbour's turn on the card adds is not the work's own.
 * But where the times themselves differ, the mean; and the longest where that is very long.
 */
static uint64_t guess(const struct cost *entry) {
    uint64_t low = larger(smaller(entry->low[0], entry->low[1]), AT_LEAST);
    uint64_t high = larger(entry->high[0], entry->high[1]), usual = mean(entry);
    if (usual / WILD_FACTOR > low && high >= WILD_NS) return high;
    return usual > VARYING * low ? usual : low;
}

/* Whoever finds another thread at it does without. */
void costs_learn(const void *work, uint64_t ns) {
    uint32_t *lock = lock_of();
    if (!process_try_lock(lock)) return;
    struct cost *entry = enter(work);
    add_sample(entry, ns);
    store(&entry->ns, guess(entry));
    process_unlock(lock);
}

void costs_mark(const void *work, uint64_t ns) {
    uint32_t *lock = lock_of();
    if (!process_try_lock(lock)) return;
    struct cost *entry = enter(work);
    if (!entry->ns) store(&entry->ns, ns);
    process_unlock(lock);
}

enum costs_kind costs_of(const void *work, uint64_t *ns, uint64_t *likely) {
    const struct cost *entry = costs_place(work);
    bool same = __atomic_load_n(&entry->work, __ATOMIC_ACQUIRE) == work;
    *ns = *likely = same ? (uint64_t)__atomic_load_n(&entry->ns, __ATOMIC_RELAXED) : 0;
    if (!same || !__atomic_load_n(&entry->samples, __ATOMIC_RELAXED)) return COSTS_UNKNOWN;
    *likely = smaller(mean(entry), *ns);
    return *ns > 2 * *likely ? COSTS_WILD : COSTS_STEADY;
}
