/* The state file: mapping, process slots and locks. */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Locked bytes lie beyond the end of any file, where nothing reads or writes. */
static const off_t slot_locks = (off_t)1 << 40;
static const off_t card_locks = (off_t)1 << 41;

/* File locks of the same open file exclude other processes, but not threads of this one. */
static pthread_mutex_t card_mutexes[SIM_MAX_CARDS] = {[0 ... SIM_MAX_CARDS - 1] =
                                                          PTHREAD_MUTEX_INITIALIZER};

const char *sim_path(void) {
    const char *path = getenv("SIMGPU_STATE");
    return path && *path ? path : "/run/simgpu/state";
}

static bool layout_ok(const struct sim_state *state) {
    return memcmp(state->magic, SIM_MAGIC, sizeof state->magic) == 0 &&
           state->layout == SIM_LAYOUT && state->bytes == sizeof *state &&
           state->card_count <= SIM_MAX_CARDS;
}

int sim_open(struct sim *sim, const char *path) {
    struct stat info;
    *sim = (struct sim){.fd = open(path, O_RDWR | O_CLOEXEC), .slot = -1};
    if (sim->fd < 0) return -1;
    errno = EPROTO;
    if (fstat(sim->fd, &info) || info.st_size < (off_t)sizeof *sim->state) goto fail;
    void *map = mmap(NULL, sizeof *sim->state, PROT_READ | PROT_WRITE, MAP_SHARED, sim->fd, 0);
    if (map == MAP_FAILED) goto fail;
    sim->state = map;
    if (layout_ok(sim->state)) return 0;
    munmap(map, sizeof *sim->state);
    errno = EPROTO;
fail:;
    int why = errno;
    close(sim->fd);
    *sim = (struct sim){.fd = -1, .slot = -1};
    errno = why;
    return -1;
}

/* Closing any descriptor of the file drops the process's slot lock, so a library that shares its
 * process with libcuda must never call this. */
void sim_close(struct sim *sim) {
    munmap(sim->state, sizeof *sim->state);
    close(sim->fd);
    *sim = (struct sim){.fd = -1, .slot = -1};
}

void sim_abandon(struct sim *sim) {
    if (sim->fd >= 0) close(sim->fd);
    sim->fd = -1;
    sim->slot = -1;
}

static bool lock_byte(int fd, int command, short type, off_t at) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int rc;
    do rc = fcntl(fd, command, &lock);
    while (rc && errno == EINTR);
    return rc == 0;
}

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
    if (!lock_byte(sim->fd, F_SETLK, F_WRLCK, slot_locks + slot)) return false;
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

/* Whether the memory of a dead process has been returned by now, which takes return_ns on harsh
 * cards. */
static bool returned(const struct sim *sim, struct sim_process *process) {
    uint64_t now = sim_now(sim);
    if (!process->died_at) process->died_at = now;
    for (uint32_t card = 0; card < sim->state->card_count; card++)
        if (process->contexts[card] && now < process->died_at + sim->state->cards[card].return_ns)
            return false;
    process->died_at = 0;
    return true;
}

/* A description-owned lock conflicts with every process-owned one, even this process's, so it can
 * only be taken for a dead owner's slot. If this process dies here, the next one to reap frees the
 * slot. */
static void reap_slot(struct sim *sim, int slot) {
    struct sim_process *process = &sim->state->processes[slot];
    if (process->state == SIM_SLOT_FREE) return;
    if (!lock_byte(sim->fd, F_OFD_SETLK, F_WRLCK, slot_locks + slot)) return;
    if (process->state != SIM_SLOT_FREE && returned(sim, process)) {
        empty_slot(process);
        process->state = SIM_SLOT_FREE;
    }
    lock_byte(sim->fd, F_OFD_SETLK, F_UNLCK, slot_locks + slot);
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

void sim_lock_card(struct sim *sim, unsigned card) {
    pthread_mutex_lock(&card_mutexes[card]);
    lock_byte(sim->fd, F_OFD_SETLKW, F_WRLCK, card_locks + card);
}

void sim_unlock_card(struct sim *sim, unsigned card) {
    lock_byte(sim->fd, F_OFD_SETLK, F_UNLCK, card_locks + card);
    pthread_mutex_unlock(&card_mutexes[card]);
}

bool sim_card_is_locked(const struct sim *sim, unsigned card) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = card_locks + card, .l_len = 1};
    return fcntl(sim->fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

static bool node_is_there(const char *name, uint64_t number) {
    const char *dev = getenv("SIMGPU_DEV");
    char path[512];
    snprintf(path, sizeof path, "%s/%s%llu", dev && *dev ? dev : "/dev", name,
             (unsigned long long)number);
    return access(path, F_OK) == 0;
}

bool sim_card_visible(const struct sim *sim, unsigned card) {
    const struct sim_card *info = &sim->state->cards[card];
    if (!node_is_there("nvidia", sim->state->cards[sim_card_whole(sim, card)].minor)) return false;
    return !info->parent || (node_is_there("nvidia-caps/nvidia-cap", info->gpu_capability) &&
                             node_is_there("nvidia-caps/nvidia-cap", info->compute_capability));
}

bool sim_card_lost(const struct sim *sim, unsigned card) {
    return sim->state->cards[card].lost || sim->state->cards[sim_card_whole(sim, card)].lost;
}

bool sim_card_is_instance(const struct sim *sim, unsigned card) {
    return sim->state->cards[card].parent != 0;
}

unsigned sim_card_whole(const struct sim *sim, unsigned card) {
    uint64_t parent = sim->state->cards[card].parent;
    return parent ? (unsigned)parent - 1 : card;
}

int sim_next_instance(const struct sim *sim, unsigned whole, int after) {
    for (unsigned card = (unsigned)(after + 1); card < sim->state->card_count; card++)
        if (sim->state->cards[card].parent == whole + 1 && sim_card_visible(sim, card) &&
            !sim_card_lost(sim, card))
            return (int)card;
    return -1;
}
