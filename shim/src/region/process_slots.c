#include "region/process_slots.h"

#include <sys/prctl.h>
#include <time.h>

#include "base/atomics.h"
#include "base/message.h"
#include "base/proc.h"
#include "base/sys.h"
#include "region/dead_processes.h"

/* Number of slots that are checked for dead processes when a process attaches. */
#define SETTLE_AT_ATTACH 8
#define LOCK_PAGE 4096

/*
 * Keeps the open file description, and with it the lock, by a mapping until the process dies or
 * execs. Children do not inherit the mapping, and no descriptor remains that the program might
 * close.
 */
static bool keep_lock(int fd) {
    void *page = sys_map(LOCK_PAGE, PROT_READ, MAP_SHARED, fd);
    return page && SYS(SYS_madvise, page, LOCK_PAGE, MADV_DONTFORK) == 0;
}

/* ---- a second driver ------------------------------------------------------------------------- */

static uint32_t goes_past;

/*
 * Called when the process attaches and when it finds a second driver; the later call takes effect.
 */
static void tell_if_past(struct regions *regions) {
    const struct process *process = regions->process;
    if (!load_seq_cst(&goes_past) ||
        !load_seq_cst(&process->attached))
        return;
    __atomic_store_n(&regions->usage->slots[process->slot].shim_version, MIZAR_SHIM_PAST,
                     __ATOMIC_RELAXED);
}

void process_slots_tell_past(void) {
    struct regions *regions = load_acquire(&regions_current);
    __atomic_store_n(&goes_past, 1, __ATOMIC_SEQ_CST);
    if (regions && regions->mode == REGIONS_ACTIVE) tell_if_past(regions);
}

/* ---- claiming -------------------------------------------------------------------------------- */

static void raise_high(struct mizar_usage *usage, unsigned slot) {
    uint32_t high = load_relaxed(&usage->slot_high);
    while (high <= slot &&
           !__atomic_compare_exchange_n(&usage->slot_high, &high, slot + 1, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

static void introduce(struct mizar_usage_slot *entry, const struct proc_stat *self) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    entry->pid = (uint32_t)SYS(SYS_getpid);
    entry->start_time = self->start_time;
    entry->generation++;
    entry->pid_ns = proc_pid_namespace();
    entry->attached_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    entry->uid = (uint32_t)SYS(SYS_getuid);
    entry->shim_version = MIZAR_SHIM_VERSION;
    SYS(SYS_prctl, PR_GET_NAME, entry->comm);
    __atomic_store_n(&entry->state, MIZAR_STATE_READY, __ATOMIC_RELEASE);
}

/*
 * Claims the slot if its lock can be taken. Bytes may be left although the state is EMPTY, if the
 * owner was killed before it filled in the slot, so every claim settles.
 */
static bool claim(struct mizar_usage *usage, int fd, unsigned slot, const struct proc_stat *self) {
    if (!dead_processes_lock(fd, slot)) return false;
    raise_high(usage, slot);
    if (dead_processes_settle_slot(usage, slot)) {
        introduce(&usage->slots[slot], self);
        return true;
    }
    dead_processes_unlock(fd, slot);
    return false;
}

/* Tries first the slots that look free, which costs no system call for the others, and then all. */
static int claim_any(struct mizar_usage *usage, int fd, const struct proc_stat *self) {
    for (unsigned slot = 0; slot < MIZAR_SLOT_MAX; slot++)
        if (load_relaxed(&usage->slots[slot].state) == MIZAR_STATE_EMPTY &&
            claim(usage, fd, slot, self))
            return (int)slot;
    for (unsigned slot = 0; slot < MIZAR_SLOT_MAX; slot++)
        if (claim(usage, fd, slot, self)) return (int)slot;
    return -1;
}

static void shake_hands(struct mizar_usage *usage) {
    __atomic_fetch_add(&usage->attached, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->shim_version, MIZAR_SHIM_VERSION, __ATOMIC_RELAXED);
}

/*
 * Claims any slot, whose lock a mapping then keeps, so the caller may close `fd`. Returns -1 if
 * there is none.
 */
static int claim_with(struct mizar_usage *usage, int fd, const struct proc_stat *self) {
    dead_processes_settle_some(usage, fd, load_relaxed(&usage->attached) * SETTLE_AT_ATTACH, SETTLE_AT_ATTACH);
    int slot = claim_any(usage, fd, self);
    if (slot >= 0 && !keep_lock(fd)) slot = -1;
    if (slot < 0) __atomic_fetch_add(&usage->no_slot, 1, __ATOMIC_RELAXED);
    if (slot >= 0) shake_hands(usage);
    return slot;
}

static bool attach(struct regions *regions) {
    static int told;
    struct proc_stat self;
    if (!proc_stat(0, &self)) { /* the agent identifies the process by its start time */
        message_once(&told, "CUDA is refused: /proc/self/stat cannot be read");
        return false;
    }
    int fd = regions_open_usage();
    int slot = fd < 0 ? -1 : claim_with(regions->usage, fd, &self);
    if (fd >= 0) sys_close(fd);
    if (slot < 0) {
        message_once(&told, "CUDA is refused: no process slot is free (%u are taken)",
                     regions_slots_used(regions->usage));
        return false;
    }
    regions->process->slot = (uint32_t)slot;
    __atomic_store_n(&regions->process->attached, 1, __ATOMIC_SEQ_CST);
    tell_if_past(regions);
    return true;
}

bool process_slots_attach(struct regions *regions) {
    struct process *process = regions->process;
    if (__builtin_expect(load_acquire(&process->attached), 1)) return true;
    lock_take(&process->attach_lock);
    bool attached = process->attached || attach(regions);
    lock_release(&process->attach_lock);
    return attached;
}
