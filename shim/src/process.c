#include "process.h"

#include <time.h>

#include "sys.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

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

void *process_map(size_t bytes) {
    void *memory = sys_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!memory) return NULL;
    if (SYS(SYS_madvise, memory, bytes, MADV_WIPEONFORK) == 0) return memory;
    sys_unmap(memory, bytes);
    return NULL;
}

struct process *process_new(void) {
    return process_map(sizeof(struct process));
}

void process_drop(struct process *process) {
    sys_unmap(process, sizeof *process);
}
