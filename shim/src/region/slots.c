#include "region/slots.h"

#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/atomics.h"
#include "base/message.h"
#include "base/proc.h"
#include "base/sys.h"
#include "region/ledger.h"

#define SETTLE_EVERY_MS 100
#define SETTLE_AT_ATTACH 8
#define LOCK_PAGE 4096

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

/* ---- the lock that says "alive" ---------------------------------------------------------------- */

static long set_lock(int fd, unsigned slot, short type) {
    struct flock lock = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = MIZAR_SLOT_LOCK(slot), .l_len = 1};
    return SYS(SYS_fcntl, fd, F_OFD_SETLK, &lock);
}

static bool try_lock(int fd, unsigned slot) {
    return set_lock(fd, slot, F_WRLCK) == 0;
}

static void unlock(int fd, unsigned slot) {
    set_lock(fd, slot, F_UNLCK);
}

/*
 * Lets a mapping keep the open file description, and with it the lock, until the process dies or
 * execs. Children don't get the mapping, and no descriptor stays that the program might close.
 */
static bool keep_lock(int fd) {
    void *page = sys_map(LOCK_PAGE, PROT_READ, MAP_SHARED, fd);
    return page && SYS(SYS_madvise, page, LOCK_PAGE, MADV_DONTFORK) == 0;
}

/* ---- settling the dead ------------------------------------------------------------------------- */

/* True while the slot's last owner has let its lock go, but perhaps not yet its GPU memory. */
static bool still_exiting(struct mizar_usage_slot *slot) {
    uint64_t here = proc_pid_namespace();
    return here && slot->pid && slot->pid_ns == here &&
           proc_exiting(slot->pid, slot->start_time);
}

/* The caller holds the slot's lock, so nobody else changes what the slot holds. */
static void give_back(struct mizar_usage *usage, unsigned slot) {
    for (unsigned card = 0; card < MIZAR_CARD_MAX; card++) {
        uint64_t bytes = ledger_slot_bytes(usage, card, slot);
        if (!bytes) continue;
        ledger_give(usage, card, slot, bytes);
        __atomic_fetch_add(&usage->cards[card].settled, 1, __ATOMIC_RELAXED);
    }
}

/* The slot becomes empty, unless its owner is not quite gone. The caller holds the slot's lock. */
static bool settle(struct mizar_usage *usage, unsigned slot) {
    struct mizar_usage_slot *entry = &usage->slots[slot];
    if (still_exiting(entry)) return false;
    give_back(usage, slot);
    memset(entry->cards, 0, sizeof entry->cards);
    memset(entry->code_begun, 0, sizeof entry->code_begun);
    entry->pid = 0;
    __atomic_store_n(&entry->state, MIZAR_STATE_EMPTY, __ATOMIC_RELEASE);
    return true;
}

unsigned slots_used(struct mizar_usage *usage) {
    unsigned high = load_relaxed(&usage->slot_high);
    return high < MIZAR_SLOT_MAX ? high : MIZAR_SLOT_MAX;
}

/* Looks at up to `count` slots, from `first` on and around. False: one is not quite gone. */
static bool settle_some(struct mizar_usage *usage, int fd, unsigned first, unsigned count) {
    unsigned used = slots_used(usage);
    bool all = true;
    for (unsigned i = 0; i < used && i < count; i++) {
        unsigned slot = (first + i) % used;
        if (load_relaxed(&usage->slots[slot].state) == MIZAR_STATE_EMPTY) continue;
        if (!try_lock(fd, slot)) continue; /* alive: it may well be ourselves */
        all = settle(usage, slot) && all;
        unlock(fd, slot);
    }
    return all;
}

bool slots_settle(struct regions *regions) {
    int fd = regions_open_usage();
    if (fd < 0) return false;
    bool all = settle_some(regions->usage, fd, 0, MIZAR_SLOT_MAX);
    sys_close(fd);
    return all;
}

void slots_settle_sometimes(struct regions *regions) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    uint32_t ms = (uint32_t)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
    uint32_t last = load_relaxed(&regions->process->settled_at);
    if (last && ms - last < SETTLE_EVERY_MS) return;
    if (!__atomic_compare_exchange_n(&regions->process->settled_at, &last, ms ? ms : 1, false,
                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    slots_settle(regions);
}

/* ---- the handshake ----------------------------------------------------------------------------- */

static uint32_t goes_past;

/* Told by whoever comes second: who attaches, or who finds the second driver. */
static void tell_if_past(struct regions *regions) {
    const struct process *process = regions->process;
    if (!load_seq_cst(&goes_past) ||
        !load_seq_cst(&process->attached))
        return;
    __atomic_store_n(&regions->usage->slots[process->slot].shim_version, MIZAR_SHIM_PAST,
                     __ATOMIC_RELAXED);
}

void slots_tell_past(void) {
    struct regions *regions = load_acquire(&regions_current);
    __atomic_store_n(&goes_past, 1, __ATOMIC_SEQ_CST);
    if (regions && regions->mode == REGIONS_ACTIVE) tell_if_past(regions);
}

/* ---- claiming ---------------------------------------------------------------------------------- */

static void raise_high(struct mizar_usage *usage, unsigned slot) {
    uint32_t high = load_relaxed(&usage->slot_high);
    while (high <= slot &&
           !__atomic_compare_exchange_n(&usage->slot_high, &high, slot + 1, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

static void introduce(struct mizar_usage_slot *entry) {
    struct proc_stat stat = {0};
    struct timespec now;
    proc_stat(0, &stat);
    clock_gettime(CLOCK_REALTIME, &now);
    entry->pid = (uint32_t)SYS(SYS_getpid);
    entry->start_time = stat.start_time;
    entry->generation++;
    entry->pid_ns = proc_pid_namespace();
    entry->attached_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    entry->uid = (uint32_t)SYS(SYS_getuid);
    entry->shim_version = MIZAR_SHIM_VERSION;
    SYS(SYS_prctl, PR_GET_NAME, entry->comm);
    __atomic_store_n(&entry->state, MIZAR_STATE_READY, __ATOMIC_RELEASE);
}

/*
 * The slot's lock decides; a loser tries the next one. Bytes may be left although the state is
 * EMPTY (an owner killed before it introduced itself), so every claim settles.
 */
static bool claim(struct mizar_usage *usage, int fd, unsigned slot) {
    if (!try_lock(fd, slot)) return false;
    raise_high(usage, slot);
    if (settle(usage, slot)) {
        introduce(&usage->slots[slot]);
        return true;
    }
    unlock(fd, slot);
    return false;
}

/* First the slots that look free, which costs no system call for the others; then every one. */
static int claim_any(struct mizar_usage *usage, int fd) {
    for (unsigned slot = 0; slot < MIZAR_SLOT_MAX; slot++)
        if (load_relaxed(&usage->slots[slot].state) == MIZAR_STATE_EMPTY && claim(usage, fd, slot))
            return (int)slot;
    for (unsigned slot = 0; slot < MIZAR_SLOT_MAX; slot++)
        if (claim(usage, fd, slot)) return (int)slot;
    return -1;
}

static void shake_hands(struct mizar_usage *usage) {
    __atomic_fetch_add(&usage->attached, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->shim_version, MIZAR_SHIM_VERSION, __ATOMIC_RELAXED);
}

/* -1: no slot. The descriptor is closed in any case; a kept mapping holds the lock. */
static int claim_with(struct mizar_usage *usage, int fd) {
    settle_some(usage, fd, load_relaxed(&usage->attached) * SETTLE_AT_ATTACH, SETTLE_AT_ATTACH);
    int slot = claim_any(usage, fd);
    if (slot >= 0 && !keep_lock(fd)) slot = -1;
    if (slot < 0) __atomic_fetch_add(&usage->no_slot, 1, __ATOMIC_RELAXED);
    if (slot >= 0) shake_hands(usage);
    return slot;
}

static bool attach(struct regions *regions) {
    static int told;
    int fd = regions_open_usage();
    int slot = fd < 0 ? -1 : claim_with(regions->usage, fd);
    if (fd >= 0) sys_close(fd);
    if (slot < 0) {
        message_once(&told, "CUDA is refused: no process slot is free (%u are taken)",
                     slots_used(regions->usage));
        return false;
    }
    regions->process->slot = (uint32_t)slot;
    __atomic_store_n(&regions->process->attached, 1, __ATOMIC_SEQ_CST);
    tell_if_past(regions);
    return true;
}

bool slots_attach(struct regions *regions) {
    struct process *process = regions->process;
    if (__builtin_expect(load_acquire(&process->attached), 1)) return true;
    lock_take(&process->attach_lock);
    bool attached = process->attached || attach(regions);
    lock_release(&process->attach_lock);
    return attached;
}
