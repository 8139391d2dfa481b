/*
 * What a thread may still launch without asking: a few loads and a subtraction on its own memory,
 * no lock, no clock, no system call. meter.c fills this in.
 */
#ifndef MIZAR_LANES_H
#define MIZAR_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "costs.h"
#include "cuda_api.h"

#define LANES_BITS 3

struct meter;

/* GPU time granted to one thread for one stream, and what measures its use. */
struct lane {
    uintptr_t name;  /* of the stream; 0: free */
    int64_t credit;  /* ns left */
    int64_t granted; /* ns in all */
    struct meter *meter;   /* NULL: not measured */
    uint32_t begin_serial; /* of the stamp at which the grant began */
    uint16_t begin;        /* that stamp; 0: none */
};

/* The library is loaded with the program, so its thread variables lie at a fixed distance. */
#define THREADS_OWN __thread __attribute__((tls_model("initial-exec")))
extern THREADS_OWN struct lane lanes[1 << LANES_BITS];

/* One name for each stream; `twin` for the entry points of the per-thread default stream. */
static inline uintptr_t lanes_stream(CUstream stream, bool twin) {
    return stream ? (uintptr_t)stream : twin ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

static inline struct lane *lanes_place(uintptr_t name) {
    return &lanes[costs_hash(name, LANES_BITS)];
}

/* Pays for one launch out of what the thread was granted; false: ask meter_begin(). */
static inline bool lanes_pay(const void *work, uintptr_t name) {
    struct lane *lane = lanes_place(name);
    int64_t cost = __atomic_load_n(&costs_place(work)->ns, __ATOMIC_RELAXED);
    if (__builtin_expect(lane->name != name || !cost, 0)) return false;
    return __builtin_expect((lane->credit -= cost) >= 0, 1);
}

#endif
