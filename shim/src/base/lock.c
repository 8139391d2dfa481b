#include "base/lock.h"

#include "base/sys.h"

#define PATIENCE 1000 /* ms */

void process_lock(uint32_t *lock) {
    while (!process_try_lock(lock)) sys_sleep(50);
}

bool process_lock_patiently(uint32_t *lock) {
    bool locked = process_try_lock(lock);
    for (int i = 1; !locked && i < PATIENCE; i++) {
        sys_sleep(1000);
        locked = process_try_lock(lock);
    }
    return locked;
}
