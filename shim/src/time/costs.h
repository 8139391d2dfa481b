/*
 * What a launch of each kernel or graph takes of the card's time: learned from measurements. A
 * guess that says how much to reserve; what is charged is measured.
 *
 * A function whose times vary is learned by the shape of its launches as well: the same kernel over
 * as many blocks takes much the same time.
 *
 * One table for the process, read without a lock: an entry is found by linear probing and stays
 * where it is, until the table is too full and starts anew. It has room for more functions, graphs and
 * shapes than programs use, and takes memory for those that they do.
 */
#ifndef MIZAR_COSTS_H
#define MIZAR_COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/numbers.h"

#define COSTS_BITS 16
#define COSTS_MAX (1u << COSTS_BITS)

#define COSTS_BY_SHAPE (-1) /* in place of ns */

enum costs_kind {
    COSTS_UNKNOWN, /* never measured */
    COSTS_STEADY,
    COSTS_VARYING, /* the mean of what it takes */
    COSTS_WILD,    /* now short, now very long: taken for long until it is measured */
};

/* What was learned of the times of some work. A thread that reads it while it changes gets parts of both. */
struct guess {
    enum costs_kind kind;
    bool fresh;      /* measured a few times only, perhaps while others had the card as well */
    uint64_t ns;     /* what a launch is taken for ... */
    uint64_t likely; /* ... and probably takes */
};

struct cost {
    const void *work; /* a function, a graph, or a function in one shape; NULL: free */
    int64_t ns;       /* what a launch is taken for; 0: not known */
};

extern struct cost costs[COSTS_MAX];

/* The work's entry, or a free one. The table is never full. */
static inline struct cost *costs_place(const void *work) {
    for (uint64_t i = scattered((uintptr_t)work, COSTS_BITS);; i = (i + 1) % COSTS_MAX) {
        const void *found = __atomic_load_n(&costs[i].work, __ATOMIC_ACQUIRE);
        if (__builtin_expect(found == work || !found, 1)) return &costs[i];
    }
}

/*
 * Of a launch's blocks and threads: in the upper half how many warps they are, in the lower some
 * number for how they are arranged. 0: it has none.
 */
static inline uint64_t costs_shape(unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z) {
    uint64_t blocks = (uint64_t)grid_x * grid_y * grid_z;
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    uint64_t warps = blocks * ((threads + 31) / 32 + !threads);
    uint64_t grid = grid_x + ((uint64_t)grid_y << 32) + grid_z * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t block = block_x | (uint64_t)block_y << 20 | (uint64_t)block_z << 40;
    uint64_t arranged = scattered(grid * UINT64_C(0xd6e8feb86659fd93) ^ block, 32);
    return (warps < UINT32_MAX ? warps : UINT32_MAX) << 32 | arranged;
}

static inline uint32_t costs_size(uint64_t shape) {
    return (uint32_t)(shape >> 32);
}

/* The name of a function in one shape: no address that a program can have. */
static inline const void *costs_shaped(const void *work, uint64_t shape) {
    uint64_t name = scattered(scattered((uintptr_t)work, 64) ^ shape, 63);
    return (const void *)(uintptr_t)(UINT64_C(1) << 63 | name);
}

/* ns that a launch is taken for; 0: not known. */
static inline int64_t costs_ns(const void *work, uint64_t shape) {
    int64_t ns = __atomic_load_n(&costs_place(work)->ns, __ATOMIC_RELAXED);
    if (__builtin_expect(ns != COSTS_BY_SHAPE, 1)) return ns;
    return __atomic_load_n(&costs_place(costs_shaped(work, shape))->ns, __ATOMIC_RELAXED);
}

/* What is known of it; of a shape that is new, as much as the largest that is known takes for its size. */
struct guess costs_of(const void *work, uint64_t shape);

/* One launch took that long; or not `known`: that long at most, since others may have had the card. */
void costs_learn(const void *work, uint64_t shape, uint64_t ns, bool known);

/* It turns out that others had the card of late: what was not measured often is forgotten. */
void costs_doubt(void);

/* The handle is another one's now. */
void costs_forget(const void *work);

/* A context has begun or ended: what is launched next may have to be brought to another one first. */
void costs_forget_all(void);

/* Nobody measures: each launch is taken for so many ns. */
void costs_mark(const void *work, uint64_t shape, uint64_t ns);

#endif
