/*
 * Time that passes only when the test lets it, or when the shim sleeps: then the others have their turn,
 * whom `while_asleep` plays. The program's own functions are found before libc's, also by the shim: include
 * this in one file of a program.
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

static _Atomic uint64_t clock_ns = UINT64_C(1000000) * MS; /* of every clock */
static void (*_Atomic while_asleep)(void);

static inline void pass(uint64_t ns) {
    atomic_fetch_add(&clock_ns, ns);
}

static void fall_asleep(const struct timespec *span) {
    pass((uint64_t)span->tv_sec * 1000 * MS + (uint64_t)span->tv_nsec);
    void (*others)(void) = while_asleep;
    if (others) others();
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *now) {
    uint64_t ns = atomic_load(&clock_ns);
    (void)id;
    *now = (struct timespec){(time_t)(ns / (1000 * MS)), (long)(ns % (1000 * MS))};
    return 0;
}

__attribute__((visibility("default"))) long syscall(long number, ...) {
    static long (*next)(long, ...);
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_nanosleep) return fall_asleep((const struct timespec *)given[0]), 0;
    if (number == SYS_futex && given[1] == FUTEX_WAIT && given[3]) {
        if (atomic_load((_Atomic uint32_t *)given[0]) == (uint32_t)given[2])
            fall_asleep((const struct timespec *)given[3]);
        return errno = ETIMEDOUT, -1;
    }
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

#endif
