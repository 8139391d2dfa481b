#include "region/dead_processes.h"

#include <string.h>
#include <time.h>

#include "base/atomics.h"
#include "base/proc.h"
#include "base/sys.h"
#include "region/memory_ledger.h"

/* Milliseconds between two searches by dead_processes_settle_sometimes(). */
#define SETTLE_EVERY_MS 100

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

static long set_lock(int fd, unsigned slot, short type) {
    struct flock lock = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = MIZAR_SLOT_LOCK(slot), .l_len = 1};
    return SYS(SYS_fcntl, fd, F_OFD_SETLK, &lock);
}

bool dead_processes_lock(int fd, unsigned slot) {
    return set_lock(fd, slot, F_WRLCK) == 0;
}

void dead_processes_unlock(int fd, unsigned slot) {
    set_lock(fd, slot, F_UNLCK);
}

/* Whether the slot's last owner has released its lock, but perhaps not yet its GPU memory. */
static bool still_exiting(struct mizar_usage_slot *slot) {
    uint64_t here = proc_pid_namespace();
    return here && slot->pid && slot->pid_ns == here &&
           proc_exiting(slot->pid, slot->start_time);
}

/*
 * The agent may still report memory that the process held beyond its account. So its figures count
 * as old, as after a use of code, until it has asked NVML again. A page is reserved once code was
 * used, so none is where the driver loads no code late.
 */
static void outdate_figures(struct mizar_usage_card *card) {
    if (load_relaxed(&card->code_uses))
        __atomic_fetch_add(&card->code_uses, 1, __ATOMIC_SEQ_CST);
}

/* The caller holds the slot's lock, so no other thread changes what the slot holds. */
static void give_back(struct mizar_usage *usage, unsigned slot) {
    for (unsigned card = 0; card < MIZAR_CARD_MAX; card++) {
        uint64_t bytes = ledger_slot_bytes(usage, card, slot);
        if (!bytes) continue;
        outdate_figures(&usage->cards[card]);
        ledger_give(usage, card, slot, bytes);
        __atomic_fetch_add(&usage->cards[card].settled, 1, __ATOMIC_RELAXED);
    }
}

bool dead_processes_settle_slot(struct mizar_usage *usage, unsigned slot) {
    struct mizar_usage_slot *entry = &usage->slots[slot];
    if (still_exiting(entry)) return false;
    give_back(usage, slot);
    memset(entry->cards, 0, sizeof entry->cards);
    memset(entry->code_begun, 0, sizeof entry->code_begun);
    entry->pid = 0;
    __atomic_store_n(&entry->state, MIZAR_STATE_EMPTY, __ATOMIC_RELEASE);
    return true;
}

bool dead_processes_settle_some(struct mizar_usage *usage, int fd, unsigned first, unsigned count) {
    unsigned used = regions_slots_used(usage);
    bool all = true;
    for (unsigned i = 0; i < used && i < count; i++) {
        unsigned slot = (first + i) % used;
        if (load_relaxed(&usage->slots[slot].state) == MIZAR_STATE_EMPTY) continue;
        if (!dead_processes_lock(fd, slot)) continue; /* alive; it may be this process */
        all = dead_processes_settle_slot(usage, slot) && all;
        dead_processes_unlock(fd, slot);
    }
    return all;
}

bool dead_processes_settle(struct regions *regions) {
    int fd = regions_open_usage();
    if (fd < 0) return false;
    bool all = dead_processes_settle_some(regions->usage, fd, 0, MIZAR_SLOT_MAX);
    sys_close(fd);
    return all;
}

void dead_processes_settle_sometimes(struct regions *regions) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    uint32_t ms = (uint32_t)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
    uint32_t last = load_relaxed(&regions->process->settled_at);
    if (last && ms - last < SETTLE_EVERY_MS) return;
    if (!__atomic_compare_exchange_n(&regions->process->settled_at, &last, ms ? ms : 1, false,
                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    dead_processes_settle(regions);
}
