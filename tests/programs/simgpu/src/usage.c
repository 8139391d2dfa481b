/* Memory usage of a card, by process. */
#include "state.h"

enum { PIECE_BYTES = 2 << 20 }; /* scattered memory cannot be allocated in larger pieces than this */

struct held {
    uint64_t fixed, movable;
};

static struct held held_on(const struct sim_state *state, unsigned card) {
    struct held held = {0};
    for (uint32_t slot = 0; slot < state->slots_touched; slot++) {
        const struct sim_process *process = &state->processes[slot];
        held.fixed += process->memory[card];
        held.movable += process->managed[card];
    }
    return held;
}

static uint64_t at_most(uint64_t value, uint64_t limit) {
    return value < limit ? value : limit;
}

struct sim_usage sim_card_usage(struct sim *sim, unsigned card) {
    const struct sim_card *info = &sim->state->cards[card];
    sim_reap(sim);
    struct held held = held_on(sim->state, card);
    struct sim_usage usage = {.total = info->memory_bytes, .reserved = info->reserved_bytes};
    usage.used = at_most(held.fixed + held.movable, usage.total - usage.reserved);
    usage.free = usage.total - usage.reserved - usage.used;
    return usage;
}

static bool fits(const struct sim *sim, unsigned card, uint64_t bytes) {
    const struct sim_card *info = &sim->state->cards[card];
    uint64_t room = info->memory_bytes - info->reserved_bytes;
    uint64_t held = held_on(sim->state, card).fixed;
    uint64_t scattered = bytes > PIECE_BYTES ? info->scattered_bytes : 0;
    return held + scattered <= room && bytes <= room - held - scattered;
}

/* ---- watch: did processes ever hold more than a test allows? ---------------------------------- */

static uint64_t held_by(const struct sim *sim, uint32_t slot, unsigned card) {
    const struct sim_process *process = &sim->state->processes[slot];
    return process->memory[card] + process->managed[card];
}

/*
 * A dying process counts until it has released its slot's lock, even if no process has reaped the
 * slot yet. The bytes are read after that check, since a new owner may have taken the slot, which
 * has none.
 */
static uint64_t held_by_the_watched(const struct sim *sim, unsigned card) {
    uint64_t held = 0;
    for (uint32_t slot = 0; slot < sim->state->slots_touched; slot++)
        if (!sim->state->processes[slot].unwatched && held_by(sim, slot, card) &&
            sim_slot_alive(sim, (int)slot))
            held += held_by(sim, slot, card);
    return held;
}

/* The card's lock is held, so no process takes memory: all that is summed was on the card at the
 * same time. */
static void watch(struct sim *sim, unsigned card) {
    struct sim_card *info = &sim->state->cards[card];
    uint64_t most = info->watch_bytes;
    if (!most) return;
    struct held held = held_on(sim->state, card);
    if (held.fixed + held.movable <= most) return;
    uint64_t watched = held_by_the_watched(sim, card);
    if (watched <= most) return;
    info->over_count++;
    if (watched - most > info->over_bytes) info->over_bytes = watched - most;
}

void sim_move_managed(struct sim *sim, unsigned card, int64_t bytes) {
    sim_lock_card(sim, card);
    sim->state->processes[sim->slot].managed[card] += (uint64_t)bytes;
    watch(sim, card);
    sim_unlock_card(sim, card);
}

/* --------------------------------------------------------------------------------------------- */

bool sim_take(struct sim *sim, unsigned card, uint64_t bytes) {
    sim_lock_card(sim, card);
    bool ok = fits(sim, card, bytes);
    if (!ok) {
        sim_reap(sim);
        ok = fits(sim, card, bytes);
    }
    if (ok) sim->state->processes[sim->slot].memory[card] += bytes;
    if (ok) watch(sim, card);
    sim_unlock_card(sim, card);
    return ok;
}

void sim_give(struct sim *sim, unsigned card, uint64_t bytes) {
    sim->state->processes[sim->slot].memory[card] -= bytes;
}
