/*
 * A union of intervals that are added nearly in order. It consists of all moments before a mark,
 * except for gaps, of which the newest are remembered, so that intervals added late can fill them.
 */
#ifndef MIZAR_INTERVAL_UNION_H
#define MIZAR_INTERVAL_UNION_H

#include <stdint.h>

/* Large enough for a long kernel that is settled after many short ones of other streams. */
#define GAPS_MAX 128

struct gap {
    uint64_t from, to;
};

struct interval_union {
    uint32_t lock, next;
    uint64_t until;
    struct gap gaps[GAPS_MAX];
};

/* The weight of an interval [from, to]. */
typedef uint64_t interval_union_measure(const void *terms, uint64_t from, uint64_t to);

/*
 * Adds [from, to], and returns the measure of the part that was not in the union before. *late: the
 * part of that result that filled gaps. Thread-safe.
 */
uint64_t interval_union_add(struct interval_union *set, uint64_t from, uint64_t to,
                            interval_union_measure *measure, const void *terms, uint64_t *late);

#endif
