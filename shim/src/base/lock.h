/* Locks in words of memory: 0 is free, and so is a lock that a forked child finds wiped. */
#ifndef MIZAR_LOCK_H
#define MIZAR_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* A lock that may be waited for; held for microseconds, never over a call that may not return. */
static inline bool lock_try(uint32_t *lock) {
    return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE);
}
void lock_take(uint32_t *lock);

/* The same, for about a second at most: a lock that no living process holds would be waited for for ever. */
bool lock_patiently(uint32_t *lock);

static inline void lock_release(uint32_t *lock) {
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

#endif
