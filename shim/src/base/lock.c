#include "base/lock.h"

#include "base/sys.h"

#define PATIENCE 1000 /* ms that lock_patiently() waits */

void lock_take(uint32_t *lock) {
    while (!lock_try(lock)) sys_sleep(50);
}

bool lock_patiently(uint32_t *lock) {
    bool locked = lock_try(lock);
    for (int i = 1; !locked && i < PATIENCE; i++) {
        sys_sleep(1000);
        locked = lock_try(lock);
    }
    return locked;
}
