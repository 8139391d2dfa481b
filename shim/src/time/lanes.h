/*
 * What a thread may still launch without asking: a few loads and a subtraction on its own memory,
 * no lock, no clock, no system call. meter.c fills this in.
 */
#ifndef MIZAR_LANES_H
#define MIZAR_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_api.h"
#include "time/costs.h"

#define LANES_MAX 8 /* streams that a thread uses in turns */

struct meter;

/* GPU time granted to one thread for one stream, and what measures its use. */
struct lane {
    uintptr_t name;  /* of the stream; 0: free */
    int64_t credit;  /* ns left, by what launches cost */
    struct meter *meter;   /* NULL: not measured */
    uint64_t since;        /* the last grant ... */
    uint32_t used;         /* ... ns of what was launched, as far as it is over */
    uint32_t granted;      /* ns in all */
    uint32_t begin_serial; /* of the stamp at which the grant began */
    uint32_t ended;        /* how many streams had ended at the grant */
    uint16_t begin;        /* that stamp; 0: none */
    uint16_t overlap;      /* at the grant: meter.c */
    bool probed;           /* the last grant was none, to measure the launch after it */
};

/*
 * The library is loaded with the program, so that its thread variables lie at a fixed distance.
 * There is little room for such variables where a library comes later (dlmopen).
 */
#define THREADS_OWN __thread __attribute__((tls_model("initial-exec")))
struct lanes {
    uint32_t last;   /* the one that was used last */
    uint64_t copied; /* copies.h */
    bool watched;    /* when the thread ends, what it was granted goes back */
    struct lane all[LANES_MAX];
};
extern THREADS_OWN struct lanes lanes;

/* One name for each stream; `twin` for the entry points of the per-thread default stream. */
static inline uintptr_t lanes_stream(CUstream stream, bool twin) {
    return stream ? (uintptr_t)stream : twin ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/* Among those that were not used last; NULL: the stream has none. */
struct lane *lanes_search(uintptr_t name);

static inline struct lane *lanes_find(uintptr_t name) {
    struct lane *lane = &lanes.all[lanes.last];
    return __builtin_expect(lane->name == name, 1) ? lane : lanes_search(name);
}

/* Whether the thread has a grant that is measured. */
static inline bool lanes_granted(void) {
    bool any = false;
    for (uint32_t i = 0; i < LANES_MAX; i++) any |= lanes.all[i].begin != 0;
    return any;
}

/* Pays for one launch out of what the thread was granted; false: ask meter_begin(). */
static inline bool lanes_pay(const void *work, uint64_t shape, uintptr_t name) {
    struct lane *lane = lanes_find(name);
    int64_t cost = costs_ns(work, shape);
    if (__builtin_expect(!lane || !cost, 0)) return false;
    return __builtin_expect((lane->credit -= cost) >= 0, 1);
}

#endif
