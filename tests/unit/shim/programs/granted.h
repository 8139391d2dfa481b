/* A thread's grants for its launches, and whether a call ends them. */
#ifndef GRANTED_H
#define GRANTED_H

#include <stdbool.h>

#include "api.h"
#include "check.h"
#include "clock.h"

#define LAUNCHES 20
#define TAKES 1000      /* ns each */
#define ROUNDS 32       /* of launches: so that more is granted than those after them use */
#define GRANTED 10000   /* ns, at least */

static inline void launch(CUstream on) {
    for (int i = 0; i < LAUNCHES; i++) {
        CHECK_IS(api.cuLaunchKernel((CUfunction)0x5000, 1, 1, 1, 32, 1, 1, 0, on, NULL, NULL),
                 CUDA_SUCCESS);
        pass(TAKES);
    }
}

/* The moment up to which the container has reserved the card's time. */
static inline uint64_t reserved_until(void) {
    return __atomic_load_n(&api_usage()->cards[0].compute.paid_until, __ATOMIC_RELAXED);
}

/* Launches to a stream, until this thread has been granted more than it has used. */
static inline void be_granted(CUstream on) {
    for (int i = 0; i < ROUNDS; i++) launch(on);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_IS(api.cuStreamSynchronize(on), CUDA_SUCCESS);
    CHECK_IS(api.cuMemcpyHtoDAsync_v2(0x1000, "", 1 << 20, on), CUDA_SUCCESS); /* see copies.h */
    launch(on);
}

/* Whether the call, after launches to a stream, lowers what the container has reserved. */
static inline bool gives_back(CUresult (*call)(void), CUstream on) {
    be_granted(on);
    uint64_t before = reserved_until();
    CHECK_IS(call(), CUDA_SUCCESS);
    return reserved_until() + GRANTED < before;
}

#endif
