/*
 * A union of intervals that come nearly in order: moments up to a mark are in it or not, and of
 * those that are not the latest gaps are remembered, for intervals that come late.
 */
#ifndef MIZAR_INTERVAL_UNION_H
#define MIZAR_INTERVAL_UNION_H

#include <stdint.h>

#define GAPS_MAX 128 /* a long kernel of one stream is settled after many short ones of others */

struct gap {
    uint64_t from, to;
};

struct interval_union {
    uint32_t lock, next;
    uint64_t until;
    struct gap gaps[GAPS_MAX];
};

/* How much some interval [from, to] counts. */
typedef uint64_t interval_union_measure(const void *terms, uint64_t from, uint64_t to);

/*
 * Adds [from, to] and returns the measure of what was not in the union before; *late is the part of
 * it that filled gaps.
 */
uint64_t interval_union_add(struct interval_union *set, uint64_t from, uint64_t to,
                            interval_union_measure *measure, const void *terms, uint64_t *late);

#endif
