/* The operations of tests and tools on the machine: create it, read it, make cards fail. The Python
 * package calls them by ctypes, so that only C code knows the layout of the state file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "time_sharing.h"

#define API __attribute__((visibility("default")))

struct field {
    const char *name;
    size_t at;
    size_t room; /* bytes of a text; 0: a number */
};

#define CARD_NUMBER(name) {#name, offsetof(struct sim_card, name), 0}
#define CARD_TEXT(name) \
    {#name, offsetof(struct sim_card, name), sizeof(((struct sim_card *)0)->name)}
static const struct field card_fields[] = {
    CARD_TEXT(uuid),
    CARD_TEXT(name),
    CARD_TEXT(profile),
    CARD_NUMBER(minor),
    CARD_NUMBER(numa),
    CARD_NUMBER(divided),
    CARD_NUMBER(parent),
    CARD_NUMBER(gpu_instance),
    CARD_NUMBER(compute_instance),
    CARD_NUMBER(gpu_capability),
    CARD_NUMBER(compute_capability),
    CARD_NUMBER(slices),
    CARD_NUMBER(memory_bytes),
    CARD_NUMBER(reserved_bytes),
    CARD_NUMBER(context_bytes),
    CARD_NUMBER(context_ns),
    CARD_NUMBER(module_bytes),
    CARD_NUMBER(function_bytes),
    CARD_NUMBER(handles_load),
    CARD_NUMBER(sm_count),
    CARD_NUMBER(compute_major),
    CARD_NUMBER(compute_minor),
    CARD_NUMBER(clock_mhz),
    CARD_NUMBER(memory_clock_mhz),
    CARD_NUMBER(bus_bits),
    CARD_NUMBER(power_milliwatts),
    CARD_NUMBER(temperature_celsius),
    CARD_NUMBER(slowdown_celsius),
    CARD_NUMBER(nvlinks),
    CARD_NUMBER(nvlinks_down),
    CARD_NUMBER(remap_failed),
    CARD_NUMBER(slice_ns),
    CARD_NUMBER(switch_ns),
    CARD_NUMBER(period_ns),
    CARD_NUMBER(kernel_ns),
    CARD_NUMBER(link_bytes_per_us),
    CARD_NUMBER(memory_bytes_per_us),
    CARD_NUMBER(slice_spread_ns),
    CARD_NUMBER(switch_spread_ns),
    CARD_NUMBER(uninterrupted),
    CARD_NUMBER(launch_ns),
    CARD_NUMBER(launch_spread_ns),
    CARD_NUMBER(first_launch_ns),
    CARD_NUMBER(event_ns),
    CARD_NUMBER(event_spread_ns),
    CARD_NUMBER(event_grain_ns),
    CARD_NUMBER(event_drift_ppm),
    CARD_NUMBER(queue_kernels),
    CARD_NUMBER(clock_swing_percent),
    CARD_NUMBER(copying_percent),
    CARD_NUMBER(return_ns),
    CARD_NUMBER(scattered_bytes),
    CARD_NUMBER(nvml_ns),
    CARD_NUMBER(nvml_spread_ns),
    CARD_NUMBER(nvml_stale_ns),
    CARD_NUMBER(nvml_missing),
    CARD_NUMBER(nvml_foreign),
    CARD_NUMBER(watch_bytes),
    CARD_NUMBER(over_bytes),
    CARD_NUMBER(over_count),
    CARD_NUMBER(lost),
    CARD_NUMBER(last_xid),
    CARD_NUMBER(xid_count),
    {NULL, 0, 0},
};
static const struct field machine_fields[] = {
    {"card_count", offsetof(struct sim_state, card_count), 0},
    {"clock_mode", offsetof(struct sim_state, clock_mode), 0},
    {"clock_ns", offsetof(struct sim_state, clock_ns), 0},
    {"cuda_version", offsetof(struct sim_state, cuda_version), 0},
    {"driver_version", offsetof(struct sim_state, driver_version), 32},
    {"mig_strategy", offsetof(struct sim_state, mig_strategy), 16},
    {NULL, 0, 0},
};

/* The address of a field of a card, or of the machine (card -1). NULL: no such field or card. */
static char *find(struct sim *sim, int card, const char *name, size_t *room) {
    const struct field *field = card < 0 ? machine_fields : card_fields;
    char *base = card < 0 ? (char *)sim->state : (char *)&sim->state->cards[card];
    if (card >= (int)sim->state->card_count) return NULL;
    while (field->name && strcmp(field->name, name) != 0) field++;
    *room = field->room;
    return field->name ? base + field->at : NULL;
}

/* Sizes the file. It is sparse, so unused cards and processes take no disk space. */
static int lay_out(int fd, unsigned cards) {
    size_t bytes = sizeof(struct sim_state);
    if (fchmod(fd, 0666) || ftruncate(fd, (off_t)bytes)) return errno;
    struct sim_state *state = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED) return errno;
    memcpy(state->magic, SIM_MAGIC, sizeof state->magic);
    state->layout = SIM_LAYOUT;
    state->bytes = bytes;
    state->card_count = cards;
    state->clock_ns = 1000000000;
    state->node_pids = sim_pid_namespace();
    munmap(state, bytes);
    return 0;
}

/* Creates a new file; an existing one is left unchanged. */
API int simadmin_create(const char *path, unsigned cards) {
    if (cards > SIM_MAX_CARDS) return EINVAL;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int why = lay_out(fd, cards);
    if (why) unlink(path);
    close(fd);
    return why;
}

API struct sim *simadmin_open(const char *path) {
    struct sim *sim = malloc(sizeof *sim);
    if (sim && sim_open(sim, path) == 0) return sim;
    free(sim);
    return NULL;
}

API void simadmin_close(struct sim *sim) {
    sim_close(sim);
    free(sim);
}

/* Returns a card number that is not in use: a new one, or that of a MIG instance that was removed.
 * -1: all are in use. */
API int simadmin_spare(struct sim *sim) {
    for (unsigned card = 0; card < sim->state->card_count; card++)
        if (sim->state->cards[card].parent && sim->state->cards[card].lost) return (int)card;
    if (sim->state->card_count >= SIM_MAX_CARDS) return -1;
    sim->state->cards[sim->state->card_count].lost = 1; /* hidden until its fields are filled in */
    return (int)sim->state->card_count++;
}

API int simadmin_get(struct sim *sim, int card, const char *field, uint64_t *value) {
    size_t room;
    char *at = find(sim, card, field, &room);
    if (!at || room) return EINVAL;
    *value = *(sim_u64 *)at;
    return 0;
}

API int simadmin_set(struct sim *sim, int card, const char *field, uint64_t value) {
    size_t room;
    char *at = find(sim, card, field, &room);
    if (!at || room) return EINVAL;
    *(sim_u64 *)at = value;
    return 0;
}

API int simadmin_get_text(struct sim *sim, int card, const char *field, char *text, size_t room) {
    size_t held;
    const char *at = find(sim, card, field, &held);
    if (!at || !held || room < held) return EINVAL;
    memcpy(text, at, held);
    return 0;
}

API int simadmin_set_text(struct sim *sim, int card, const char *field, const char *text) {
    size_t room;
    char *at = find(sim, card, field, &room);
    if (!at || !room || strlen(text) >= room) return EINVAL;
    memset(at, 0, room);
    memcpy(at, text, strlen(text));
    return 0;
}

API int simadmin_raise_xid(struct sim *sim, unsigned card, uint64_t xid) {
    if (card >= sim->state->card_count) return EINVAL;
    struct sim_card *info = &sim->state->cards[card];
    sim_lock_card(sim, card);
    info->xids[info->xid_count % SIM_MAX_XIDS] = xid;
    info->xid_count++;
    sim_unlock_card(sim, card);
    return 0;
}

API void simadmin_usage(struct sim *sim, unsigned card, struct sim_usage *usage) {
    *usage = sim_card_usage(sim, card);
}

API unsigned simadmin_slots(struct sim *sim) {
    sim_reap(sim);
    return sim->state->slots_touched;
}

API void simadmin_tick(struct sim *sim, uint64_t ns) {
    sim_tick(sim, ns);
}

/* Writes the ns of work done, the number of context switches, and the simulated time. */
API void simadmin_busy(struct sim *sim, unsigned card, uint64_t figures[3]) {
    sim_lock_card(sim, card);
    const struct sim_timeline *line = sim_advance(sim, card, sim_now(sim));
    figures[0] = line->busy;
    figures[1] = line->switches;
    figures[2] = line->now;
    sim_unlock_card(sim, card);
}

/* Writes the PIDs (as their owners see them) and the ns of work of all living slots at one moment;
 * returns that moment (simulated ns). *count: the room in both arrays; on return, the number of
 * entries. */
API uint64_t simadmin_works(struct sim *sim, unsigned card, unsigned *count, uint32_t *pids,
                            uint64_t *works) {
    unsigned found = 0;
    sim_lock_card(sim, card);
    const struct sim_timeline *line = sim_advance(sim, card, sim_now(sim));
    for (unsigned slot = 0; slot < sim->state->slots_touched && found < *count; slot++) {
        const struct sim_process *process = &sim->state->processes[slot];
        if (process->state != SIM_SLOT_LIVE) continue;
        pids[found] = process->pid;
        works[found++] = line->work[slot] - process->inherited[card];
    }
    uint64_t now = line->now;
    sim_unlock_card(sim, card);
    *count = found;
    return now;
}

/* ---- recording: the slot that the card worked for in each interval -------------------------- */

struct recording {
    uint64_t origin, bin_ns; /* bin i is [origin + i * bin_ns, origin + (i + 1) * bin_ns) */
    uint64_t bins, slots;
    uint64_t seen; /* number of runs already counted */
    uint64_t *work; /* ns, an array of slots x bins */
};

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t sooner(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static void count_run(struct recording *to, uint64_t slot, uint64_t start, uint64_t length) {
    uint64_t end = start + length;
    start = later(start, to->origin);
    while (start < end && slot < to->slots) {
        uint64_t bin = (start - to->origin) / to->bin_ns;
        uint64_t edge = sooner(end, to->origin + (bin + 1) * to->bin_ns);
        if (bin >= to->bins) return;
        to->work[slot * to->bins + bin] += edge - start;
        start = edge;
    }
}

static const struct sim_timeline *advance(struct sim *sim, unsigned card) {
    return sim_advance(sim, card, sim_now(sim));
}

/* Starts recording; returns the present simulated time. */
API uint64_t simadmin_record(struct sim *sim, unsigned card, struct recording *to) {
    sim_lock_card(sim, card);
    const struct sim_timeline *line = advance(sim, card);
    to->origin = line->now;
    to->seen = line->runs;
    sim_unlock_card(sim, card);
    return to->origin;
}

/* Counts a whole run and the context switch before it, which is charged to the new process, since
 * no other process can use the card during it. */
static void count_whole(struct recording *to, uint64_t slot, uint64_t change, uint64_t start,
                        uint64_t length) {
    count_run(to, slot, start - change, change + length);
}

/* Counts the runs that have ended since the last call, and if `end` is set, also the current one.
 * Returns 0 if runs were overwritten before they were counted. */
API uint64_t simadmin_count(struct sim *sim, unsigned card, struct recording *to, int end) {
    const struct sim_card *info = &sim->state->cards[card];
    sim_lock_card(sim, card);
    const struct sim_timeline *line = advance(sim, card);
    bool whole = line->runs - to->seen < SIM_RUNS;
    for (; whole && to->seen < line->runs; to->seen++) {
        const struct sim_run *run = &info->runs[to->seen % SIM_RUNS];
        count_whole(to, run->slot, run->change, run->start, run->length);
    }
    if (end && line->run_open)
        count_whole(to, (uint64_t)line->running, line->run_change, line->run_start,
                    line->work[line->running] - line->run_before);
    uint64_t now = line->now;
    sim_unlock_card(sim, card);
    return whole ? now : 0;
}

API uint32_t simadmin_pid(struct sim *sim, unsigned slot) {
    return sim->state->processes[slot].pid;
}

/* --------------------------------------------------------------------------------------------- */

static uint64_t work_of(struct sim *sim, int slot, unsigned card) {
    sim_lock_card(sim, card);
    uint64_t work = sim_advance(sim, card, sim_now(sim))->work[slot];
    sim_unlock_card(sim, card);
    return work - sim->state->processes[slot].inherited[card];
}

API int simadmin_is_locked(const struct sim *sim, unsigned card) {
    return sim_card_is_locked(sim, card);
}

/* Writes pid, bytes, managed bytes, contexts and ns of work of the slot on the card. Returns 0 if
 * the slot has no living owner. */
API int simadmin_process(struct sim *sim, int slot, unsigned card, uint64_t figures[5]) {
    const struct sim_process *process = &sim->state->processes[slot];
    if (process->state != SIM_SLOT_LIVE) return 0;
    figures[0] = (uint64_t)sim_owner(sim, slot);
    figures[1] = process->memory[card];
    figures[2] = process->managed[card];
    figures[3] = process->contexts[card];
    figures[4] = work_of(sim, slot, card);
    return 1;
}
