/* Locks in words of memory. 0 means free, so a lock in wiped memory is free in a forked child. */
#ifndef MIZAR_LOCK_H
#define MIZAR_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Takes the lock if it is free, or waits for it. Locks are held for microseconds, and never during
 * a call that may not return.
 */
static inline bool lock_try(uint32_t *lock) {
    return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE);
}
void lock_take(uint32_t *lock);

/*
 * Waits for about a second at most, for a lock whose holder may have died. Returns whether it took
 * it.
 */
bool lock_patiently(uint32_t *lock);

static inline void lock_release(uint32_t *lock) {
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

#endif
