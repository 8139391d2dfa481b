/* The process slots of the state file: taken when a process first uses a card, and freed, with all
 * that they hold, when it has died. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harsh.h"

/* Locked bytes, beyond the end of any file. state.c has others. */
static const off_t slot_locks = (off_t)1 << 40;

/* Drops the work that the slot's last owner had asked for and never got. */
static void forget_work(struct sim_state *state, int slot) {
    struct sim_process *process = &state->processes[slot];
    for (uint32_t i = 0; i < state->card_count; i++) {
        const struct sim_card *card = &state->cards[i];
        uint64_t done = card->sides[card->side].work[slot];
        process->inherited[i] = done;
        process->asked[i] = done;
        process->placed[i] = 0;
    }
}

/* The process-owned lock is taken before the state is changed, so a slot that is not FREE and has
 * no lock belonged to a dead process. */
static bool claim_slot(struct sim *sim, int slot) {
    struct sim_process *process = &sim->state->processes[slot];
    uint32_t expected = SIM_SLOT_FREE;
    if (process->state != SIM_SLOT_FREE) return false;
    if (!sim_lock_byte(sim->fd, F_SETLK, F_WRLCK, slot_locks + slot)) return false;
    if (!atomic_compare_exchange_strong(&process->state, &expected, SIM_SLOT_CLAIMED)) return false;
    process->pid = (uint32_t)getpid();
    process->unwatched = getenv("SIMGPU_UNWATCHED") != NULL;
    forget_work(sim->state, slot);
    process->state = SIM_SLOT_LIVE;
    sim->slot = slot;
    uint32_t touched = sim->state->slots_touched;
    while (touched <= (uint32_t)slot &&
           !atomic_compare_exchange_weak(&sim->state->slots_touched, &touched, (uint32_t)slot + 1));
    return true;
}

static void empty_slot(struct sim_process *process) {
    for (int card = 0; card < SIM_MAX_CARDS; card++) {
        process->memory[card] = 0;
        process->managed[card] = 0;
        process->contexts[card] = 0;
    }
}

/* A description-owned lock conflicts with every process-owned one, even this process's, so it can
 * only be taken for a dead owner's slot. If this process dies here, the next one to reap frees the
 * slot. */
static void reap_slot(struct sim *sim, int slot) {
    struct sim_process *process = &sim->state->processes[slot];
    if (process->state == SIM_SLOT_FREE) return;
    if (!sim_lock_byte(sim->fd, F_OFD_SETLK, F_WRLCK, slot_locks + slot)) return;
    if (process->state != SIM_SLOT_FREE && harsh_returned(sim, process)) {
        empty_slot(process);
        process->state = SIM_SLOT_FREE;
    }
    sim_lock_byte(sim->fd, F_OFD_SETLK, F_UNLCK, slot_locks + slot);
}

void sim_reap(struct sim *sim) {
    static pthread_mutex_t one_reaper = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_reaper);
    for (int slot = 0; slot < (int)sim->state->slots_touched; slot++) reap_slot(sim, slot);
    pthread_mutex_unlock(&one_reaper);
}

/* Frees dead owners' slots first and takes the lowest free one, so that used slots stay close
 * together. */
int sim_claim(struct sim *sim) {
    sim_reap(sim);
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++)
        if (claim_slot(sim, slot)) return 0;
    return -1;
}

pid_t sim_owner(const struct sim *sim, int slot) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot_locks + slot, .l_len = 1};
    const struct sim_process *process = &sim->state->processes[slot];
    if (process->state != SIM_SLOT_LIVE || fcntl(sim->fd, F_GETLK, &lock)) return 0;
    /* A process's own lock does not conflict with itself. */
    if (lock.l_type == F_UNLCK) return process->pid == (uint32_t)getpid() ? getpid() : 0;
    return lock.l_pid > 0 ? lock.l_pid : 0;
}

uint64_t sim_pid_namespace(void) {
    struct stat found;
    return stat("/proc/self/ns/pid", &found) ? 0 : found.st_ino;
}

bool sim_slot_alive(const struct sim *sim, int slot) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot_locks + slot, .l_len = 1};
    if (slot == sim->slot) return true;
    /* A process that reaps a dead owner's slot holds a lock too, but it is not process-owned (pid
     * -1). */
    return fcntl(sim->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid != -1;
}
