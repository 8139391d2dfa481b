/*
 * A library to be preloaded before the shim: its monotonic clock is that of a simulated machine whose
 * clock is "stepped" (SIMGPU_STATE), so that time passes only when a thread waits, for a card or in the
 * shim, and then at once. A program that waits for nothing takes no time, however busy the machine is.
 * SHAREDCLOCK_REST_US: microseconds of real time that each wait in the shim takes, for what others do
 * meanwhile.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "state.h"

#define SECOND UINT64_C(1000000000)
#define EXPORTED __attribute__((visibility("default")))

static struct sim_state *machine;
static long (*next_syscall)(long, ...);
static struct timespec rest_span;

__attribute__((constructor)) static void open_machine(void) {
    int file = open(getenv("SIMGPU_STATE"), O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(machine != MAP_FAILED && machine->clock_mode == SIM_CLOCK_STEPPED);
    close(file);
    *(void **)&next_syscall = dlsym(RTLD_NEXT, "syscall");
    const char *us = getenv("SHAREDCLOCK_REST_US");
    rest_span.tv_nsec = us ? atol(us) * 1000 : 0;
}

static void sleep_for(const struct timespec *span) {
    uint64_t now = machine->clock_ns;
    uint64_t end = now + (uint64_t)span->tv_sec * SECOND + (uint64_t)span->tv_nsec;
    while (now < end && !atomic_compare_exchange_weak(&machine->clock_ns, &now, end));
    if (rest_span.tv_nsec) next_syscall(SYS_nanosleep, &rest_span, NULL);
    else sched_yield();
}

EXPORTED int clock_gettime(clockid_t id, struct timespec *now) {
    if (id != CLOCK_MONOTONIC || !machine) return (int)syscall(SYS_clock_gettime, id, now);
    uint64_t ns = machine->clock_ns;
    *now = (struct timespec){(time_t)(ns / SECOND), (long)(ns % SECOND)};
    return 0;
}

/* The simulated card's, where it does not know the end of a wait. */
EXPORTED int clock_nanosleep(clockid_t id, int flags, const struct timespec *span,
                             struct timespec *left) {
    static const struct timespec moment = {0, 100000};
    (void)id, (void)flags, (void)span, (void)left;
    return (int)next_syscall(SYS_nanosleep, &moment, NULL);
}

EXPORTED long syscall(long number, ...) {
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(rest, long);
    va_end(rest);
    if (machine && number == SYS_nanosleep) return sleep_for((const struct timespec *)given[0]), 0;
    if (machine && number == SYS_futex && given[1] == FUTEX_WAIT && given[3]) {
        if (atomic_load((sim_u32 *)given[0]) == (uint32_t)given[2])
            sleep_for((const struct timespec *)given[3]);
        return errno = ETIMEDOUT, -1;
    }
    if (!next_syscall) *(void **)&next_syscall = dlsym(RTLD_NEXT, "syscall");
    return next_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
