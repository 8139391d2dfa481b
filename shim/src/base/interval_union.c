#include "base/interval_union.h"

#include "base/lock.h"
#include "base/numbers.h"

/* Stores a gap in place of the oldest one. */
static void remember(struct interval_union *set, uint64_t from, uint64_t to) {
    if (from < to) set->gaps[set->next++ % GAPS_MAX] = (struct gap){from, to};
}

/*
 * Removes [from, to] from the gap, keeping the parts before and after it. Returns the measure of
 * what was removed.
 */
static uint64_t fill(struct interval_union *set, struct gap *gap, uint64_t from, uint64_t to,
                     interval_union_measure *measure, const void *terms) {
    struct gap whole = *gap;
    from = larger(from, whole.from);
    to = smaller(to, whole.to);
    if (from >= to) return 0;
    *gap = (struct gap){whole.from, from};
    remember(set, to, whole.to);
    return measure(terms, from, to);
}

static uint64_t fill_all(struct interval_union *set, uint64_t from, uint64_t to,
                         interval_union_measure *measure, const void *terms) {
    uint64_t part = 0;
    for (unsigned i = 0; from < set->until && i < GAPS_MAX; i++)
        part += fill(set, &set->gaps[i], from, to, measure, terms);
    return part;
}

static uint64_t go_on(struct interval_union *set, uint64_t from, uint64_t to,
                      interval_union_measure *measure, const void *terms) {
    uint64_t before = set->until;
    if (to <= before) return 0;
    if (before) remember(set, before, from);
    set->until = to;
    return measure(terms, larger(from, before), to);
}

uint64_t interval_union_add(struct interval_union *set, uint64_t from, uint64_t to,
                            interval_union_measure *measure, const void *terms, uint64_t *late) {
    lock_take(&set->lock);
    *late = fill_all(set, from, to, measure, terms);
    uint64_t part = *late + go_on(set, from, to, measure, terms);
    lock_release(&set->lock);
    return part;
}
