/*
 * The GPU time that a launch of each kernel or graph takes, learned from measurements. These costs
 * only determine how much is reserved; what is charged is measured.
 *
 * For a function whose times vary, costs are also learned by the shape of the launch: launches over
 * the same number of blocks take about the same time.
 *
 * The process has one table, which is read without a lock. An entry is found by linear probing and
 * stays in place until the table is half full and is emptied. The table has room for more
 * functions, graphs and shapes than programs use; its unused pages take no memory.
 */
#ifndef MIZAR_COSTS_H
#define MIZAR_COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/numbers.h"

#define COSTS_BITS 16
#define COSTS_MAX (1u << COSTS_BITS)

#define COSTS_BY_SHAPE (-1) /* in place of ns: each shape has an entry of its own */

enum costs_kind {
    COSTS_UNKNOWN, /* never measured */
    COSTS_STEADY,  /* times are about the same */
    COSTS_VARYING, /* times differ; the cost is their mean */
    COSTS_WILD,    /* times are short or very long; the cost is the longest */
};

/* The known cost of a launch. */
struct guess {
    enum costs_kind kind;
    bool fresh;      /* measured too seldom, perhaps while other containers used the card too */
    uint64_t ns;     /* assumed cost of a launch */
    uint64_t likely; /* ns that a launch probably takes */
};

struct cost {
    const void *work; /* a function, a graph, or a function in one shape; NULL: free */
    int64_t ns;       /* assumed cost of a launch, or COSTS_BY_SHAPE; 0: not known */
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
 * The shape of a launch, from its blocks and threads: the number of warps in the upper 32 bits, and
 * a hash of the dimensions in the lower ones. Work without a shape has 0.
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

/* The number of warps of a shape. */
static inline uint32_t costs_size(uint64_t shape) {
    return (uint32_t)(shape >> 32);
}

/* The key of a function in one shape. It is never an address that a program can have. */
static inline const void *costs_shaped(const void *work, uint64_t shape) {
    uint64_t name = scattered(scattered((uintptr_t)work, 64) ^ shape, 63);
    return (const void *)(uintptr_t)(UINT64_C(1) << 63 | name);
}

/* The assumed cost of a launch in ns; 0: not known. */
static inline int64_t costs_ns(const void *work, uint64_t shape) {
    int64_t ns = __atomic_load_n(&costs_place(work)->ns, __ATOMIC_RELAXED);
    if (__builtin_expect(ns != COSTS_BY_SHAPE, 1)) return ns;
    return __atomic_load_n(&costs_place(costs_shaped(work, shape))->ns, __ATOMIC_RELAXED);
}

/*
 * Returns what is known of a launch's cost. The time of a new shape is that of the largest measured
 * one, scaled by size.
 */
struct guess costs_of(const void *work, uint64_t shape);

/*
 * Learns that a launch took `ns`; or at most `ns` unless `known`, since other containers may have
 * used the card.
 */
void costs_learn(const void *work, uint64_t shape, uint64_t ns, bool known);

/*
 * To be called when other containers have used the card unnoticed. Costs with fewer samples than a
 * group are forgotten when they are next measured.
 */
void costs_doubt(void);

/* Forgets the costs of a handle that now names other work. */
void costs_forget(const void *work);

/*
 * Forgets all costs. To be called when a context has begun or ended: the next launch of a function
 * may take longer, since its code may have to be loaded into another context first.
 */
void costs_forget_all(void);

/* Sets the cost of work whose cost is not known, for launches that are not measured. */
void costs_mark(const void *work, uint64_t shape, uint64_t ns);

#endif
