/*
 * Credits: GPU time that a thread may use for launches without asking the budget. To pay for a
 * launch takes a few loads and a subtraction on the thread's own memory, without a lock, a clock or
 * a system call. Credits are granted by launch_metering.c.
 */
#ifndef MIZAR_STREAM_CREDIT_H
#define MIZAR_STREAM_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_api.h"
#include "time/costs.h"

#define STREAM_CREDITS_MAX 8 /* streams for which a thread can have credit at the same time */

struct meter;

/* GPU time granted to one thread for one stream, and how its use is measured. */
struct stream_credit {
    uintptr_t name;        /* of the stream; 0: free */
    int64_t left;          /* ns left, by the costs of launches */
    struct meter *meter;   /* NULL: not measured */
    uint64_t since;        /* when `used` began to count (ns of CLOCK_MONOTONIC) */
    uint32_t used;         /* ns launched since then, except from the present grant */
    uint32_t granted;      /* ns of the grant */
    uint32_t begin_serial; /* serial of the event `begin` */
    uint32_t ended;        /* number of streams that had ended at the grant */
    uint16_t begin;        /* the event at which the grant began; 0: none */
    uint16_t overlap;      /* of the meter, at the grant */
    bool probed;           /* nothing was granted last time, so that the next launch is measured */
};

/*
 * The library is loaded with the program, so its thread-local variables can use the initial-exec
 * model, which needs no call. Where it is loaded later (dlmopen), there is little space for such
 * variables.
 */
#define THREADS_OWN __thread __attribute__((tls_model("initial-exec")))
struct stream_credits {
    uint32_t last;   /* index of the credit that was used last */
    uint64_t copied; /* copies.h */
    bool watched;    /* grants will be refunded when the thread ends */
    struct stream_credit all[STREAM_CREDITS_MAX];
};
extern THREADS_OWN struct stream_credits stream_credits;

/*
 * The stream's name, by which credits are found. `twin`: the call came through an entry point for
 * which the default stream is the per-thread one.
 */
static inline uintptr_t stream_credit_name(CUstream stream, bool twin) {
    return stream ? (uintptr_t)stream : twin ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/* Finds the stream's credit among all; NULL if it has none. */
struct stream_credit *stream_credit_search(uintptr_t name);

/* Finds the stream's credit, trying the one used last first; NULL if it has none. */
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

/*
 * The word `asleep` of the limits, once they are known: not 0 while a card of the container is lent
 * because it is idle. Then each launch must tell the node agent that the container is active.
 */
extern const uint32_t *stream_credit_asleep;

static inline void stream_credit_watch(const uint32_t *asleep) {
    if (__atomic_load_n(&stream_credit_asleep, __ATOMIC_RELAXED) != asleep)
        __atomic_store_n(&stream_credit_asleep, asleep, __ATOMIC_RELAXED);
}

static inline bool stream_credit_must_tell(void) {
    const uint32_t *asleep = __atomic_load_n(&stream_credit_asleep, __ATOMIC_RELAXED);
    return __builtin_expect(__atomic_load_n(asleep, __ATOMIC_RELAXED), 0);
}

/* Pays for one launch from the thread's credit. If it returns false, call metering_begin(). */
static inline bool stream_credit_pay(const void *work, uint64_t shape, uintptr_t name) {
    struct stream_credit *credit = stream_credit_find(name);
    int64_t cost = costs_ns(work, shape);
    if (__builtin_expect(!credit || !cost, 0) || stream_credit_must_tell()) return false;
    return __builtin_expect((credit->left -= cost) >= 0, 1);
}

#endif
