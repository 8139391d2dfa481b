#include "costs.h"

#include "numbers.h"
#include "regions.h"

#define AT_LEAST 500    /* ns: no launch is for nothing */
#define GROUP 256       /* samples */
#define FEW 3
#define VARIES_OVER 3   /* halves of the median: a mean above that tells of times that vary ... */
#define QUARTERS 4      /* ... and so does an upper quartile above as much of the lower one */
#define WILD_FACTOR 4   /* between the mean and the median ... */
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
        costs[i].guess = 0;
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
    entry->samples = entry->guess = 0;
    store(&entry->ns, 0);
    __atomic_store_n(&entry->work, work, __ATOMIC_RELEASE);
    return entry;
}

static void begin_group(struct cost *entry) {
    entry->group[1] = entry->group[0];
    entry->group[0] = (struct cost_group){0};
}

static void add_sample(struct cost *entry, uint64_t ns) {
    struct cost_group *group = &entry->group[0];
    if (entry->samples && entry->samples % GROUP == 0) begin_group(entry);
    entry->recent[entry->samples++ % COSTS_RECENT] = (uint32_t)smaller(ns, UINT32_MAX);
    group->high = larger(group->high, ns);
    group->sum += ns;
    group->count++;
}

static uint64_t mean(const struct cost *entry) {
    return (entry->group[0].sum + entry->group[1].sum) /
           larger(entry->group[0].count + entry->group[1].count, 1);
}

/* The sample below which so many quarters of the newest ones are; of two in question the lower. */
static uint64_t quartile(const struct cost *entry, unsigned quarters) {
    unsigned count = (unsigned)smaller(entry->samples, COSTS_RECENT), place = 0;
    uint32_t sorted[COSTS_RECENT];
    for (unsigned i = 0; i < count; i++) {
        for (place = i; place && sorted[place - 1] > entry->recent[i]; place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = entry->recent[i];
    }
    return count ? larger(sorted[(count - 1) * quarters / QUARTERS], AT_LEAST) : AT_LEAST;
}

static uint64_t median(const struct cost *entry) {
    return quartile(entry, 2);
}

static bool varies(const struct cost *entry) {
    return 2 * mean(entry) > VARIES_OVER * median(entry) ||
           2 * quartile(entry, 3) > VARIES_OVER * quartile(entry, 1);
}

/*
 * The median of the newest samples: what a neighbour's turn on the card adds to some is not the
 * work's own. But where the times themselves vary, the mean of many; and the longest where that is
 * very long.
 */
static uint64_t guess(const struct cost *entry) {
    uint64_t high = larger(entry->group[0].high, entry->group[1].high);
    if (!varies(entry)) return median(entry);
    return mean(entry) / WILD_FACTOR > median(entry) && high >= WILD_NS ? high : mean(entry);
}

/* A bound tells something new if it is lower than what was known. */
static bool is_worth(const struct cost *entry, uint64_t ns, bool known) {
    return known || !entry->samples || ns < median(entry);
}

static struct cost *learn(const void *work, uint64_t ns, bool known) {
    struct cost *entry = enter(work);
    if (is_worth(entry, ns, known)) add_sample(entry, ns);
    __atomic_store_n(&entry->guess, guess(entry), __ATOMIC_RELAXED);
    if (entry->ns != COSTS_BY_SHAPE) store(&entry->ns, entry->guess);
    return entry;
}

/* Whoever finds another thread at it does without. */
void costs_learn(const void *work, uint64_t shape, uint64_t ns, bool known) {
    uint32_t *lock = lock_of();
    if (!process_try_lock(lock)) return;
    struct cost *entry = learn(work, ns, known);
    if (shape && varies(entry)) store(&entry->ns, COSTS_BY_SHAPE);
    if (entry->ns == COSTS_BY_SHAPE) learn(costs_shaped(work, shape), ns, known);
    process_unlock(lock);
}

void costs_mark(const void *work, uint64_t shape, uint64_t ns) {
    uint32_t *lock = lock_of();
    if (!process_try_lock(lock)) return;
    struct cost *entry = enter(work);
    if (entry->ns == COSTS_BY_SHAPE) entry = enter(costs_shaped(work, shape));
    if (!entry->ns) store(&entry->ns, ns);
    process_unlock(lock);
}

/* NULL: it was never measured. */
static const struct cost *measured(const void *work) {
    const struct cost *entry = costs_place(work);
    bool same = __atomic_load_n(&entry->work, __ATOMIC_ACQUIRE) == work;
    return same && __atomic_load_n(&entry->samples, __ATOMIC_RELAXED) ? entry : NULL;
}

/* A shape that is new is taken for what the function's launches took in others. */
static const struct cost *nearest(const void *work, uint64_t shape) {
    const struct cost *entry = measured(work), *shaped = NULL;
    if (entry && __atomic_load_n(&entry->ns, __ATOMIC_RELAXED) == COSTS_BY_SHAPE)
        shaped = measured(costs_shaped(work, shape));
    return shaped ? shaped : entry;
}

enum costs_kind costs_of(const void *work, uint64_t shape, uint64_t *ns, uint64_t *likely) {
    const struct cost *entry = nearest(work, shape);
    *ns = *likely = entry ? __atomic_load_n(&entry->guess, __ATOMIC_RELAXED) : 0;
    if (!entry) return COSTS_UNKNOWN;
    *likely = smaller(mean(entry), *ns);
    if (*ns > 2 * *likely) return COSTS_WILD;
    return varies(entry) ? COSTS_VARYING : COSTS_STEADY;
}

bool costs_new(const void *work, uint64_t shape) {
    const struct cost *entry = nearest(work, shape);
    return !entry || __atomic_load_n(&entry->samples, __ATOMIC_RELAXED) < FEW;
}
