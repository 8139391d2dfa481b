#include "time/costs.h"

#include "base/numbers.h"
#include "region/regions.h"

/* ns: every launch costs at least this much, so that none is free. */
#define AT_LEAST 500
/* ns: upper bound of a cost that is estimated from a launch's size. */
#define LONGEST UINT64_C(10000000000)
/* The mean is taken over the last one or two groups of this many samples. */
#define GROUP 256
/* With fewer samples than this a cost is fresh. With up to this many, `usual` is their median. */
#define FEW 3
/* Number of samples from which on it is clear whether times vary. */
#define SURE 4
/*
 * This many bounds in a row are ignored as too high; the next one is taken to show that the work
 * takes longer.
 */
#define REFUSED_MOST 8
/*
 * A bound is not too high if it exceeds the known time by at most 1/NEAR of it.
 */
#define NEAR 8
#define QUARTERS 4
/*
 * Times vary if the mean is more than this many times `usual`, or the upper quartile more than this
 * many times the lower one.
 */
#define VARIES_PART 3 / 2
/* Varying times may be wild if the mean is more than this many times `usual`. */
#define WILD_FACTOR 4
/* ns: times are wild only if one was this long, which is longer than a switch between processes. */
#define WILD_NS 2000000
/* Number of newest samples from which `usual` and the quartiles are taken. */
#define RECENT 15

/*
 * Further statistics of an entry, for the threads that write it. They are kept apart from the
 * entries, since launches read only those.
 */
struct facts {
    struct guess guess; /* over all shapes */
    uint32_t size;      /* of the largest measured launch, if costs are kept by shape; else 0 ... */
    uint64_t size_ns;   /* ... and what that takes */
    uint64_t samples;
    unsigned refused;   /* number of bounds in a row that were ignored as too high */
    unsigned epoch;     /* how often costs_doubt() had been called before the newest sample */
    struct group {
        uint64_t high, sum, count;
    } group[2]; /* the newest samples, and those before */
    uint32_t recent[RECENT];
};

struct cost costs[COSTS_MAX];
static struct facts all_facts[COSTS_MAX];

static uint32_t used, doubted;

/*
 * The lock of threads that write. With regions it is the process's own, so that a forked child does
 * not find it held forever.
 */
static uint32_t *lock_of(void) {
    static uint32_t lone;
    struct regions *regions = __atomic_load_n(&regions_current, __ATOMIC_ACQUIRE);
    return regions && regions->process ? &regions->process->costs_lock : &lone;
}

static void store(int64_t *word, uint64_t value) {
    __atomic_store_n(word, (int64_t)value, __ATOMIC_RELAXED);
}

/* Empties the table when too many handles have been used, so that those in use are learned anew. */
static void forget_all(void) {
    for (unsigned i = 0; i < COSTS_MAX; i++) {
        if (!costs[i].work) continue;
        all_facts[i].samples = 0;
        store(&costs[i].ns, 0);
        __atomic_store_n(&costs[i].work, NULL, __ATOMIC_RELEASE);
    }
    used = 0;
}

static struct facts *facts_of(const struct cost *entry) {
    return &all_facts[entry - costs];
}

static void begin_anew(struct facts *facts) {
    facts->samples = facts->refused = facts->size = 0;
    facts->group[0] = facts->group[1] = (struct group){0};
}

static struct cost *enter(const void *work) {
    struct cost *entry = costs_place(work);
    if (entry->work) return entry;
    if (++used > COSTS_MAX / 2) {
        forget_all();
        entry = costs_place(work);
    }
    begin_anew(facts_of(entry));
    store(&entry->ns, 0);
    __atomic_store_n(&entry->work, work, __ATOMIC_RELEASE);
    return entry;
}

static void begin_group(struct facts *facts) {
    facts->group[1] = facts->group[0];
    facts->group[0] = (struct group){0};
}

static void add_sample(struct facts *facts, uint64_t ns) {
    struct group *group = &facts->group[0];
    if (facts->samples && facts->samples % GROUP == 0) begin_group(facts);
    facts->recent[facts->samples++ % RECENT] = (uint32_t)smaller(ns, UINT32_MAX);
    group->high = larger(group->high, ns);
    group->sum += ns;
    group->count++;
}

/* ---- statistics of the samples --------------------------------------------------------------- */

/* Writes the newest samples to `sorted`, in ascending order; returns how many. */
static unsigned sort(const struct facts *facts, uint32_t *sorted) {
    unsigned count = (unsigned)smaller(facts->samples, RECENT), place;
    for (unsigned i = 0; i < count; i++) {
        for (place = i; place && sorted[place - 1] > facts->recent[i]; place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = facts->recent[i];
    }
    return count;
}

/* The index of a quartile among `count` sorted samples, rounded down. */
static unsigned quartile(unsigned count, unsigned number) {
    return (count - 1) * number / QUARTERS;
}

/*
 * The mean of the samples between the quartiles. It leaves out samples to which a neighbour's work
 * on the card has added, and evens out small variations of the rest.
 */
static uint64_t middle(const uint32_t *sorted, unsigned count) {
    unsigned first = quartile(count, 1), last = quartile(count, 3);
    uint64_t sum = 0;
    if (count <= FEW) return larger(sorted[quartile(count, 2)], AT_LEAST);
    for (unsigned i = first; i <= last; i++) sum += sorted[i];
    return larger(sum / (last - first + 1), AT_LEAST);
}

/* `usual`: from middle(). `mean` and `high` are of many more samples than `sorted` has. */
static enum costs_kind kind_of(const uint32_t *sorted, unsigned count, uint64_t usual,
                               uint64_t mean, uint64_t high) {
    uint64_t lower = larger(sorted[quartile(count, 1)], AT_LEAST), upper = sorted[quartile(count, 3)];
    if (mean <= usual * VARIES_PART && upper <= lower * VARIES_PART) return COSTS_STEADY;
    return mean / WILD_FACTOR > usual && high >= WILD_NS ? COSTS_WILD : COSTS_VARYING;
}

/*
 * For steady times the usual one, for varying times the mean, and for wild times also the longest.
 */
static struct guess guess(const struct facts *facts) {
    const struct group *now = &facts->group[0], *before = &facts->group[1];
    uint64_t mean = (now->sum + before->sum) / larger(now->count + before->count, 1);
    uint64_t high = larger(now->high, before->high);
    uint32_t sorted[RECENT];
    unsigned count = sort(facts, sorted);
    uint64_t usual = middle(sorted, count);
    struct guess found = {.kind = kind_of(sorted, count, usual, mean, high), .fresh = count < FEW};
    found.likely = found.kind == COSTS_STEADY ? usual : larger(mean, AT_LEAST);
    found.ns = found.kind == COSTS_WILD ? high : found.likely;
    return found;
}

/* ---- learning -------------------------------------------------------------------------------- */

/*
 * Whether to use a sample. An upper bound is used if it is no higher than what is known, or if only
 * higher ones have come for a while, since then the work takes longer.
 */
static bool is_news(struct facts *facts, uint64_t ns, bool known) {
    bool good = known || !facts->samples || ns <= facts->guess.likely + facts->guess.likely / NEAR;
    if (good) facts->refused = 0;
    return good || facts->refused++ >= REFUSED_MOST;
}

static void forget_doubtful(struct facts *facts) {
    unsigned epoch = __atomic_load_n(&doubted, __ATOMIC_RELAXED);
    if (facts->epoch != epoch && facts->samples < GROUP) begin_anew(facts);
    facts->epoch = epoch;
}

static struct cost *learn(const void *work, uint64_t ns, bool known) {
    struct cost *entry = enter(work);
    struct facts *facts = facts_of(entry);
    forget_doubtful(facts);
    if (!is_news(facts, ns, known)) return entry;
    add_sample(facts, ns);
    facts->guess = guess(facts);
    if (entry->ns != COSTS_BY_SHAPE) store(&entry->ns, facts->guess.ns);
    return entry;
}

static void learn_shaped(struct cost *function, uint64_t shape, uint64_t ns, bool known) {
    const void *work = function->work;
    struct facts *facts = facts_of(function);
    const struct cost *entry = learn(costs_shaped(work, shape), ns, known);
    if (function->work != work || costs_size(shape) < facts->size) return;
    facts->size = costs_size(shape);
    facts->size_ns = facts_of(entry)->guess.likely;
}

/*
 * Does nothing while another thread holds the lock, since a single sample may be lost. Times count
 * as varying only after SURE samples, since the first launches of many functions take longer than
 * all others.
 */
void costs_learn(const void *work, uint64_t shape, uint64_t ns, bool known) {
    uint32_t *lock = lock_of();
    if (!work || !lock_try(lock)) return;
    struct cost *entry = learn(work, ns, known);
    const struct facts *facts = facts_of(entry);
    bool steady = facts->guess.kind == COSTS_STEADY;
    if (shape && facts->samples >= SURE)
        store(&entry->ns, steady ? facts->guess.ns : (uint64_t)COSTS_BY_SHAPE);
    if (entry->ns == COSTS_BY_SHAPE) learn_shaped(entry, shape, ns, known);
    lock_release(lock);
}

void costs_doubt(void) {
    __atomic_fetch_add(&doubted, 1, __ATOMIC_RELAXED);
}

void costs_forget(const void *work) {
    uint32_t *lock = lock_of();
    lock_take(lock);
    struct cost *entry = costs_place(work);
    if (entry->work == work) {
        begin_anew(facts_of(entry));
        store(&entry->ns, 0);
    }
    lock_release(lock);
}

void costs_forget_all(void) {
    uint32_t *lock = lock_of();
    lock_take(lock);
    if (used) forget_all();
    lock_release(lock);
}

void costs_mark(const void *work, uint64_t shape, uint64_t ns) {
    uint32_t *lock = lock_of();
    if (!work || !lock_try(lock)) return;
    struct cost *entry = enter(work);
    if (entry->ns == COSTS_BY_SHAPE) entry = enter(costs_shaped(work, shape));
    if (!entry->ns) store(&entry->ns, ns);
    lock_release(lock);
}

/* The work's entry, or NULL if it was never measured. The caller holds the lock. */
static const struct cost *measured(const void *work) {
    const struct cost *entry = costs_place(work);
    return entry->work == work && facts_of(entry)->samples ? entry : NULL;
}

/*
 * The guess for a new shape, whose time is taken to be proportional to its size. The caller holds
 * the lock.
 */
static struct guess by_size(struct guess guess, double ns, double size, uint32_t wanted) {
    double likely = ns * wanted / size;
    guess.fresh = true;
    guess.ns = guess.likely = larger(likely < LONGEST ? (uint64_t)likely : LONGEST, AT_LEAST);
    return guess;
}

/* The caller holds the lock. */
static struct guess look_up(const void *work, uint64_t shape) {
    const struct cost *entry = measured(work), *shaped;
    if (!entry) return (struct guess){.kind = COSTS_UNKNOWN, .fresh = true};
    const struct facts *facts = facts_of(entry);
    if (entry->ns != COSTS_BY_SHAPE) return facts->guess;
    if ((shaped = measured(costs_shaped(work, shape)))) return facts_of(shaped)->guess;
    return facts->size ? by_size(facts->guess, (double)facts->size_ns, facts->size, costs_size(shape))
                       : facts->guess;
}

/*
 * While another thread holds the lock, only the entry's time can be read: work then counts as
 * steady.
 */
struct guess costs_of(const void *work, uint64_t shape) {
    uint32_t *lock = lock_of();
    if (lock_try(lock)) {
        struct guess found = look_up(work, shape);
        lock_release(lock);
        return found;
    }
    uint64_t ns = (uint64_t)costs_ns(work, shape);
    return (struct guess){.ns = ns, .likely = ns, .kind = ns ? COSTS_STEADY : COSTS_UNKNOWN, .fresh = !ns};
}
