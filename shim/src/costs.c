#include "costs.h"

#include "regions.h"

#define FIRST_SAMPLES 4
#define AT_LEAST 500 /* ns: no launch is for nothing */

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

/*
 * At first the least that was seen: a first launch may load code, and a neighbour may have had the
 * card in between. Then a moving mean, since some kernels take now longer and now shorter.
 */
static uint64_t next_guess(const struct cost *entry, uint64_t ns) {
    uint64_t guess = (uint64_t)entry->ns;
    if (!entry->samples) return ns;
    if (entry->samples < FIRST_SAMPLES) return ns < guess ? ns : guess;
    return guess + ns / 4 - guess / 4;
}

/* Whoever finds another thread at it does without. */
void costs_learn(const void *work, uint64_t ns) {
    uint32_t *lock = lock_of();
    if (!process_try_lock(lock)) return;
    struct cost *entry = enter(work);
    uint64_t guess = next_guess(entry, ns);
    store(&entry->ns, guess > AT_LEAST ? guess : AT_LEAST);
    entry->samples++;
    process_unlock(lock);
}

void costs_mark(const void *work, uint64_t ns) {
    uint32_t *lock = lock_of();
    if (!process_try_lock(lock)) return;
    struct cost *entry = enter(work);
    if (!entry->ns) store(&entry->ns, ns);
    process_unlock(lock);
}

uint64_t costs_of(const void *work, bool *measured) {
    const struct cost *entry = costs_place(work);
    bool same = __atomic_load_n(&entry->work, __ATOMIC_ACQUIRE) == work;
    *measured = same && __atomic_load_n(&entry->samples, __ATOMIC_RELAXED);
    return same ? (uint64_t)__atomic_load_n(&entry->ns, __ATOMIC_RELAXED) : 0;
}
