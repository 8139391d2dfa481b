#define _GNU_SOURCE
#include "clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const uint64_t second = 1000000000;
static const uint64_t moment = 100000;    /* ns between checks if the end of a wait is unknown */
static const uint64_t longest = 10000000; /* ns after which a waiting thread checks again, since
                                             e.g. a process may have died */

static uint64_t real_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * second + (uint64_t)now.tv_nsec;
}

uint64_t sim_now(const struct sim *sim) {
    return sim->state->clock_mode == SIM_CLOCK_REAL ? real_now() : sim->state->clock_ns;
}

/* Reduces the thread's timer slack: its default of 50 us is longer than many kernels here. */
static void wake_punctually(void) {
    static __thread bool done;
    if (!done) prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    done = true;
}

static void sleep_until(uint64_t when) {
    struct timespec at = {(time_t)(when / second), (long)(when % second)};
    wake_punctually();
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void jump_to(struct sim_state *state, uint64_t when) {
    uint64_t now = state->clock_ns;
    while (now < when && !atomic_compare_exchange_weak(&state->clock_ns, &now, when));
}

static void wait_for_tick(struct sim_state *state, uint64_t when) {
    struct timespec limit = {0, (long)longest};
    uint32_t ticks = state->clock_ticks;
    if (state->clock_ns >= when) return;
    syscall(SYS_futex, &state->clock_ticks, FUTEX_WAIT, ticks, &limit, NULL, 0);
}

void sim_wait_until(struct sim *sim, uint64_t when) {
    uint64_t real = real_now();
    switch (sim->state->clock_mode) {
    case SIM_CLOCK_REAL:
        if (when == SIM_NEVER) when = real + moment;
        sleep_until(when < real + longest ? when : real + longest);
        break;
    case SIM_CLOCK_STEPPED:
        if (when == SIM_NEVER) sleep_until(real + moment);
        else jump_to(sim->state, when);
        break;
    default:
        if (when == SIM_NEVER) sleep_until(real + moment);
        else wait_for_tick(sim->state, when);
    }
}

void sim_tick(struct sim *sim, uint64_t ns) {
    sim->state->clock_ns += ns;
    sim->state->clock_ticks++;
    syscall(SYS_futex, &sim->state->clock_ticks, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
