#include "time/costs.h"

#include "base/numbers.h"
#include "region/regions.h"

/* ns: every launch costs at least this much, so that none is for nothing. */
#define AT_LEAST 500
/* ns: no cost that is reckoned from a launch's size is larger. */
#define LONGEST UINT64_C(10000000000)
/* The mean is of the last one or two groups of so many samples. */
#define GROUP 256
/* With fewer samples than this a cost is fresh; with no more, their median stands for their middle. */
#define FEW 3
/* From so many samples on it shows whether times vary. */
#define SURE 4
/* So many bounds in a row are refused as too high; the next one shows that the work takes longer. */
#define REFUSED_MOST 8
/* A bound may be higher than what was known by this part of it (one in so many). */
#define NEAR 8
#define QUARTERS 4
/* Times vary if the mean is more than this times the middle, or the upper quartile than this times the lower. */
#define VARIES_PART 3 / 2
/* Varying times may be wild if the mean is more than so many times the middle. */
#define WILD_FACTOR 4
/* ns: times are wild only if some were so long, which is more than a change of processes takes. */
#define WILD_NS 2000000
/* The newest samples, of which the middle and the quartiles are taken. */
#define RECENT 15

/* What else is known of an entry, for the threads that write it. It lies apart: launches read entries alone. */
struct facts {
    struct guess guess; /* also where each shape has its own */
    uint32_t size;      /* of the largest launch that was measured, where each shape has its own ... */
    uint64_t size_ns;   /* ... and what it takes */
    uint64_t samples;
    unsigned refused;   /* samples in a row that told nothing new */
    unsigned epoch;     /* how often costs_doubt() was called before the newest one */
    struct group {
        uint64_t high, sum, count;
    } group[2]; /* of the newest samples, and of those before */
    uint32_t recent[RECENT];
};

struct cost costs[COSTS_MAX];
static struct facts all_facts[COSTS_MAX];

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

/* ---- what the samples say -------------------------------------------------------------------------- */

/* The newest samples in order; returns how many. */
static unsigned sort(const struct facts *facts, uint32_t *sorted) {
    unsigned count = (unsigned)smaller(facts->samples, RECENT), place;
    for (unsigned i = 0; i < count; i++) {
        for (place = i; place && sorted[place - 1] > facts->recent[i]; place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = facts->recent[i];
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

/* ---- learning --------------------------------------------------------------------------------------- */

/*
 * A bound tells something if it is no higher than what was known: but when there were only higher
 * ones for a while, it is the work that takes longer.
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
 * Does nothing while another thread holds the lock: one sample less is no loss. The first launches of many
 * functions take longer than all that follow, which does not mean that their times vary.
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

/* NULL: it was never measured. The caller holds the lock, as for all that follows. */
static const struct cost *measured(const void *work) {
    const struct cost *entry = costs_place(work);
    return entry->work == work && facts_of(entry)->samples ? entry : NULL;
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
    const struct facts *facts = facts_of(entry);
    if (entry->ns != COSTS_BY_SHAPE) return facts->guess;
    if ((shaped = measured(costs_shaped(work, shape)))) return facts_of(shaped)->guess;
    return facts->size ? by_size(facts->guess, (double)facts->size_ns, facts->size, costs_size(shape))
                       : facts->guess;
}

/* While another thread holds the lock, only the entry's time is known, and neither its kind nor its size. */
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
