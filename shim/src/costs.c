#include "costs.h"

#include "numbers.h"
#include "regions.h"

#define AT_LEAST 500      /* ns: no launch is for nothing */
#define LONGEST UINT64_C(10000000000)
#define GROUP 256         /* samples */
#define FEW 3
#define SURE 4            /* samples, from which it shows whether times vary */
#define REFUSED_MOST 8
#define NEAR 8            /* a part of what was known */
#define QUARTERS 4
#define VARIES_PART 3 / 2 /* of the middle is less than the mean, of the lower quartile less than the upper */
#define WILD_FACTOR 4     /* between the mean and the middle ... */
#define WILD_NS 2000000   /* ... and so long at times: more than a change of processes takes */

struct cost costs[COSTS_MAX];

static uint32_t used, doubted;

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

static void begin_anew(struct cost *entry) {
    entry->samples = entry->refused = entry->size = 0;
    entry->group[0] = entry->group[1] = (struct cost_group){0};
}

static struct cost *enter(const void *work) {
    struct cost *entry = costs_place(work);
    if (entry->work) return entry;
    if (++used > COSTS_MAX / 2) {
        forget_all();
        entry = costs_place(work);
    }
    begin_anew(entry);
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

/* ---- what the samples say -------------------------------------------------------------------------- */

/* The newest samples in order; returns how many. */
static unsigned sort(const struct cost *entry, uint32_t *sorted) {
    unsigned count = (unsigned)smaller(entry->samples, COSTS_RECENT), place;
    for (unsigned i = 0; i < count; i++) {
        for (place = i; place && sorted[place - 1] > entry->recent[i]; place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = entry->recent[i];
    }
    return count;
}

/* The place of a quartile among so many; between two the lower one. */
static unsigned quartile(unsigned count, unsigned number) {
    return (count - 1) * number / QUARTERS;
}

/*
 * The mean of those between the quartiles: what a neighbour's turn on the card adds to some is not
 * the work's own, and what it takes itself varies a little.
 */
static uint64_t middle(const uint32_t *sorted, unsigned count) {
    unsigned first = quartile(count, 1), last = quartile(count, 3);
    uint64_t sum = 0;
    if (count <= FEW) return larger(sorted[quartile(count, 2)], AT_LEAST);
    for (unsigned i = first; i <= last; i++) sum += sorted[i];
    return larger(sum / (last - first + 1), AT_LEAST);
}

/* `usual`: their middle; `mean` and `high` are of many more. */
static enum costs_kind kind_of(const uint32_t *sorted, unsigned count, uint64_t usual,
                               uint64_t mean, uint64_t high) {
    uint64_t lower = larger(sorted[quartile(count, 1)], AT_LEAST), upper = sorted[quartile(count, 3)];
    if (mean <= usual * VARIES_PART && upper <= lower * VARIES_PART) return COSTS_STEADY;
    return mean / WILD_FACTOR > usual && high >= WILD_NS ? COSTS_WILD : COSTS_VARYING;
}

/* Of work whose times vary the mean of many, and the longest where that is very long. */
static struct guess guess(const struct cost *entry) {
    const struct cost_group *now = &entry->group[0], *before = &entry->group[1];
    uint64_t mean = (now->sum + before->sum) / larger(now->count + before->count, 1);
    uint64_t high = larger(now->high, before->high);
    uint32_t sorted[COSTS_RECENT];
    unsigned count = sort(entry, sorted);
    uint64_t usual = middle(sorted, count);
    struct guess found = {.kind = kind_of(sorted, count, usual, mean, high), .fresh = count < FEW};
    found.likely = found.kind == COSTS_STEADY ? usual : larger(mean, AT_LEAST);
    found.ns = found.kind == COSTS_WILD ? high : found.likely;
    return found;
}

/* ---- learning --------------------------------------------------------------------------------------- */

/*
 * A bound tells something if it is no higher than what was known: but when there were only higher
 * ones for a while, it is the work that takes longer.
 */
static bool is_news(struct cost *entry, uint64_t ns, bool known) {
    bool good = known || !entry->samples || ns <= entry->guess.likely + entry->guess.likely / NEAR;
    if (good) entry->refused = 0;
    return good || entry->refused++ >= REFUSED_MOST;
}

static void forget_doubtful(struct cost *entry) {
    unsigned epoch = __atomic_load_n(&doubted, __ATOMIC_RELAXED);
    if (entry->epoch != epoch && entry->samples < GROUP) begin_anew(entry);
    entry->epoch = epoch;
}

static struct cost *learn(const void *work, uint64_t ns, bool known) {
    struct cost *entry = enter(work);
    forget_doubtful(entry);
    if (!is_news(entry, ns, known)) return entry;
    add_sample(entry, ns);
    entry->guess = guess(entry);
    if (entry->ns != COSTS_BY_SHAPE) store(&entry->ns, entry->guess.ns);
    return entry;
}

static void learn_shaped(struct cost *function, uint64_t shape, uint64_t ns, bool known) {
    const void *work = function->work;
    const struct cost *entry = learn(costs_shaped(work, shape), ns, known);
    if (function->work != work || costs_size(shape) < function->size) return;
    function->size = costs_size(shape);
    function->size_ns = entry->guess.likely;
}

/*
 * Whoever finds another thread at it does without. The first launches of many functions take
 * longer than all that follow, which does not mean that their times vary.
 */
void costs_learn(const void *work, uint64_t shape, uint64_t ns, bool known) {
    uint32_t *lock = lock_of();
    if (!work || !process_try_lock(lock)) return;
    struct cost *entry = learn(work, ns, known);
    bool steady = entry->guess.kind == COSTS_STEADY;
    if (shape && entry->samples >= SURE)
        store(&entry->ns, steady ? entry->guess.ns : (uint64_t)COSTS_BY_SHAPE);
    if (entry->ns == COSTS_BY_SHAPE) learn_shaped(entry, shape, ns, known);
    process_unlock(lock);
}

void costs_doubt(void) {
    __atomic_fetch_add(&doubted, 1, __ATOMIC_RELAXED);
}

void costs_forget(const void *work) {
    uint32_t *lock = lock_of();
    process_lock(lock);
    struct cost *entry = costs_place(work);
    if (entry->work == work) {
        begin_anew(entry);
        store(&entry->ns, 0);
    }
    process_unlock(lock);
}

void costs_forget_all(void) {
    uint32_t *lock = lock_of();
    process_lock(lock);
    if (used) forget_all();
    process_unlock(lock);
}

void costs_mark(const void *work, uint64_t shape, uint64_t ns) {
    uint32_t *lock = lock_of();
    if (!work || !process_try_lock(lock)) return;
    struct cost *entry = enter(work);
    if (entry->ns == COSTS_BY_SHAPE) entry = enter(costs_shaped(work, shape));
    if (!entry->ns) store(&entry->ns, ns);
    process_unlock(lock);
}

/* NULL: it was never measured. The caller holds the lock, as for all that follows. */
static const struct cost *measured(const void *work) {
    const struct cost *entry = costs_place(work);
    return entry->work == work && entry->samples ? entry : NULL;
}

/* Of a shape that is new: work grows with its size. */
static struct guess by_size(struct guess guess, double ns, double size, uint32_t wanted) {
    double likely = ns * wanted / size;
    guess.fresh = true;
    guess.ns = guess.likely = larger(likely < LONGEST ? (uint64_t)likely : LONGEST, AT_LEAST);
    return guess;
}

static struct guess look_up(const void *work, uint64_t shape) {
    const struct cost *entry = measured(work), *shaped;
    if (!entry) return (struct guess){.kind = COSTS_UNKNOWN, .fresh = true};
    if (entry->ns != COSTS_BY_SHAPE) return entry->guess;
    if ((shaped = measured(costs_shaped(work, shape)))) return shaped->guess;
    uint32_t size = entry->size;
    return size ? by_size(entry->guess, (double)entry->size_ns, size, costs_size(shape)) : entry->guess;
}

/* Whoever finds another thread at it makes do with the time alone. */
struct guess costs_of(const void *work, uint64_t shape) {
    uint32_t *lock = lock_of();
    if (process_try_lock(lock)) {
        struct guess found = look_up(work, shape);
        process_unlock(lock);
        return found;
    }
    uint64_t ns = (uint64_t)costs_ns(work, shape);
    return (struct guess){.ns = ns, .likely = ns, .kind = ns ? COSTS_STEADY : COSTS_UNKNOWN, .fresh = !ns};
}
