/* Locks in words of memory. 0 means free, so a lock in wiped memory is free in a forked child. */
#ifndef MIZAR_LOCK_H
#define MIZAR_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * lock_try() takes the lock if it is free; lock_take() waits for it. region/process_state.h lists
 * all locks, their order, and those under which the driver may be called, which may take long. All
 * others are held for microseconds.
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
