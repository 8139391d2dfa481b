/*
 * What a thread may still launch without asking: a few loads and a subtraction on its own memory,
 * no lock, no clock, no system call. launch_metering.c fills this in.
 */
#ifndef MIZAR_STREAM_CREDIT_H
#define MIZAR_STREAM_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_api.h"
#include "time/costs.h"

#define STREAM_CREDITS_MAX 8 /* streams that a thread uses in turns */

struct meter;

/* GPU time granted to one thread for one stream, and what measures its use. */
struct stream_credit {
    uintptr_t name;  /* of the stream; 0: free */
    int64_t left;    /* ns left, by what launches cost */
    struct meter *meter;   /* NULL: not measured */
    uint64_t since;        /* the last grant ... */
    uint32_t used;         /* ... ns of what was launched, as far as it is over */
    uint32_t granted;      /* ns in all */
    uint32_t begin_serial; /* of the event at which the grant began */
    uint32_t ended;        /* how many streams had ended at the grant */
    uint16_t begin;        /* that event; 0: none */
    uint16_t overlap;      /* at the grant: launch_metering.c */
    bool probed;           /* the last grant was none, to measure the launch after it */
};

/*
 * The library is loaded with the program, so that its thread variables lie at a fixed distance.
 * There is little room for such variables where a library comes later (dlmopen).
 */
#define THREADS_OWN __thread __attribute__((tls_model("initial-exec")))
struct stream_credits {
    uint32_t last;   /* the one that was used last */
    uint64_t copied; /* copies.h */
    bool watched;    /* when the thread ends, what it was granted goes back */
    struct stream_credit all[STREAM_CREDITS_MAX];
};
extern THREADS_OWN struct stream_credits stream_credits;

/* One name for each stream; `twin` for the entry points of the per-thread default stream. */
static inline uintptr_t stream_credit_name(CUstream stream, bool twin) {
    return stream ? (uintptr_t)stream : twin ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/* Among those that were not used last; NULL: the stream has none. */
struct stream_credit *stream_credit_search(uintptr_t name);

static inline struct stream_credit *stream_credit_find(uintptr_t name) {
    struct stream_credit *credit = &stream_credits.all[stream_credits.last];
    return __builtin_expect(credit->name == name, 1) ? credit : stream_credit_search(name);
}

/* Whether the thread has a grant that is measured. */
static inline bool stream_credit_granted(void) {
    bool any = false;
    for (uint32_t i = 0; i < STREAM_CREDITS_MAX; i++) any |= stream_credits.all[i].begin != 0;
    return any;
}

/* In the limits, once they are known: not 0 while a card is lent since the container sleeps, so launches tell. */
extern const uint32_t *stream_credit_asleep;

static inline void stream_credit_watch(const uint32_t *asleep) {
    if (__atomic_load_n(&stream_credit_asleep, __ATOMIC_RELAXED) != asleep)
        __atomic_store_n(&stream_credit_asleep, asleep, __ATOMIC_RELAXED);
}

static inline bool stream_credit_must_tell(void) {
    const uint32_t *asleep = __atomic_load_n(&stream_credit_asleep, __ATOMIC_RELAXED);
    return __builtin_expect(__atomic_load_n(asleep, __ATOMIC_RELAXED), 0);
}

/* Pays for one launch out of what the thread was granted; false: ask metering_begin(). */
static inline bool stream_credit_pay(const void *work, uint64_t shape, uintptr_t name) {
    struct stream_credit *credit = stream_credit_find(name);
    int64_t cost = costs_ns(work, shape);
    if (__builtin_expect(!credit || !cost, 0) || stream_credit_must_tell()) return false;
    return __builtin_expect((credit->left -= cost) >= 0, 1);
}

#endif
