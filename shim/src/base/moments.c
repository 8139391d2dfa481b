#include "base/moments.h"

#include "base/lock.h"
#include "base/numbers.h"

/* In place of the gap that is longest ago. */
static void remember(struct moments *moments, uint64_t from, uint64_t to) {
    if (from < to) moments->gaps[moments->next++ % GAPS_MAX] = (struct gap){from, to};
}

/* Takes [from, to] out of the gap; what is left before and behind stays. */
static uint64_t fill(struct moments *moments, struct gap *gap, uint64_t from, uint64_t to,
                     moments_measure *measure, const void *terms) {
    struct gap whole = *gap;
    from = larger(from, whole.from);
    to = smaller(to, whole.to);
    if (from >= to) return 0;
    *gap = (struct gap){whole.from, from};
    remember(moments, to, whole.to);
    return measure(terms, from, to);
}

static uint64_t fill_all(struct moments *moments, uint64_t from, uint64_t to,
                         moments_measure *measure, const void *terms) {
    uint64_t part = 0;
    for (unsigned i = 0; from < moments->until && i < GAPS_MAX; i++)
        part += fill(moments, &moments->gaps[i], from, to, measure, terms);
    return part;
}

static uint64_t go_on(struct moments *moments, uint64_t from, uint64_t to,
                      moments_measure *measure, const void *terms) {
    uint64_t before = moments->until;
    if (to <= before) return 0;
    if (before) remember(moments, before, from);
    moments->until = to;
    return measure(terms, larger(from, before), to);
}

uint64_t moments_add(struct moments *moments, uint64_t from, uint64_t to, moments_measure *measure,
                     const void *terms, uint64_t *late) {
    lock_take(&moments->lock);
    *late = fill_all(moments, from, to, measure, terms);
    uint64_t part = *late + go_on(moments, from, to, measure, terms);
    lock_release(&moments->lock);
    return part;
}
