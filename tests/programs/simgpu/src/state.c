/* The state file: mapping, locks of cards, and which cards a process can see. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Locked bytes lie beyond the end of any file, where nothing reads or writes. process_slots.c has
 * others. */
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

bool sim_lock_byte(int fd, int command, short type, off_t at) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int rc;
    do rc = fcntl(fd, command, &lock);
    while (rc && errno == EINTR);
    return rc == 0;
}

void sim_lock_card(struct sim *sim, unsigned card) {
    pthread_mutex_lock(&card_mutexes[card]);
    sim_lock_byte(sim->fd, F_OFD_SETLKW, F_WRLCK, card_locks + card);
}

void sim_unlock_card(struct sim *sim, unsigned card) {
    sim_lock_byte(sim->fd, F_OFD_SETLK, F_UNLCK, card_locks + card);
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
