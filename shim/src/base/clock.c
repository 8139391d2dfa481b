#include "base/clock.h"

#include <time.h>

#include "base/atomics.h"
#include "base/proc.h"

/*
 * ns by which the clock is shifted in this process's time namespace. Windows refer to the node's
 * clock.
 */
static int64_t clock_shift(void) {
    static int64_t known = INT64_MIN;
    int64_t shift = load_relaxed(&known);
    if (__builtin_expect(shift != INT64_MIN, 1)) return shift;
    shift = proc_clock_shift();
    __atomic_store_n(&known, shift, __ATOMIC_RELAXED);
    return shift;
}

uint64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    return ns - (uint64_t)clock_shift();
}
