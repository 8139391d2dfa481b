#include "time_sharing.h"

#include <stddef.h>
#include <string.h>

#include "harsh.h"

enum { NOBODY = -1, FORESEEN = 256 };

/* A replay: a private copy of the card's state that is advanced step by step. */
struct replay {
    struct sim *sim;
    struct sim_card *card;
    unsigned number;
    struct sim_timeline *line;
    uint32_t slots;
    bool foresight; /* a prediction, which records no runs */
    uint64_t judged[SIM_MAX_PROCESSES / 64], dead[SIM_MAX_PROCESSES / 64];
};

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t backlog(const struct replay *replay, int slot) {
    const struct sim_process *process = &replay->sim->state->processes[slot];
    uint64_t asked = process->asked[replay->number], done = replay->line->work[slot];
    return process->state == SIM_SLOT_LIVE && asked > done ? asked - done : 0;
}

/* A dead process's work is dropped when a replay notices; the slot is checked once in each
 * replay. */
static bool is_dead(struct replay *replay, int slot) {
    uint64_t bit = (uint64_t)1 << slot % 64;
    if (!(replay->judged[slot / 64] & bit)) {
        replay->judged[slot / 64] |= bit;
        if (!sim_slot_alive(replay->sim, slot)) replay->dead[slot / 64] |= bit;
    }
    return replay->dead[slot / 64] & bit;
}

static bool has_work(struct replay *replay, int slot) {
    return backlog(replay, slot) && !is_dead(replay, slot);
}

/* The next slot after `after` that has work, with `after` itself as the last; NOBODY if none
 * has. */
static int next_worker(struct replay *replay, int after) {
    int slots = (int)replay->slots;
    for (int i = 1; i <= slots; i++) {
        int slot = (after + i + slots) % slots;
        if (has_work(replay, slot)) return slot;
    }
    return NOBODY;
}

/* ---- runs ----------------------------------------------------------------------------------- */

static void end_run(struct replay *replay) {
    struct sim_timeline *line = replay->line;
    if (!line->run_open) return;
    line->run_open = 0;
    if (replay->foresight) return;
    replay->card->runs[line->runs++ % SIM_RUNS] = (struct sim_run){
        .slot = (uint32_t)line->running,
        .change = (uint32_t)line->run_change,
        .start = line->run_start,
        .before = line->run_before,
        .length = line->work[line->running] - line->run_before,
    };
}

static void work_for(struct replay *replay, uint64_t length) {
    struct sim_timeline *line = replay->line;
    if (!line->run_open) {
        line->run_open = 1;
        line->run_start = line->now;
        line->run_before = line->work[line->running];
        line->run_change = line->change;
        line->change = 0;
    }
    line->work[line->running] += length;
    line->busy += length;
    line->now += length;
    line->slice_left -= least(length, line->slice_left);
}

/* ---- choosing the process that runs --------------------------------------------------------- */

static uint64_t switch_ns(const struct replay *replay) {
    const struct sim_card *card = replay->card;
    return card->switch_ns + harsh_draw(replay->line->switches, card->switch_spread_ns);
}

static void start(struct replay *replay, int slot) {
    struct sim_timeline *line = replay->line;
    bool changed = slot != NOBODY && slot != line->last;
    if (slot != line->running) end_run(replay);
    line->running = slot;
    line->slice_left =
        replay->card->slice_ns + harsh_draw(line->now, replay->card->slice_spread_ns);
    line->switch_left = changed && line->last != NOBODY ? switch_ns(replay) : 0;
    line->change = line->switch_left;
    line->switches += changed;
    if (slot != NOBODY) line->last = slot;
}

/* ns until the slot's current kernel ends; 0 between kernels, and if its end is no longer kept. */
static uint64_t rest_of_kernel(const struct replay *replay, int slot) {
    const struct sim_process *process = &replay->sim->state->processes[slot];
    const sim_u64 *ends = process->ends[replay->number];
    uint64_t done = replay->line->work[slot], high = process->placed[replay->number];
    uint64_t oldest = high > SIM_ENDS ? high - SIM_ENDS : 0, low = oldest, placed = high;
    while (low < high) { /* the first kernel that ends now or later */
        uint64_t middle = low + (high - low) / 2;
        if (ends[middle % SIM_ENDS] < done) low = middle + 1;
        else high = middle;
    }
    return low == placed || (oldest && low == oldest) ? 0 : ends[low % SIM_ENDS] - done;
}

static void choose(struct replay *replay) {
    struct sim_timeline *line = replay->line;
    bool goes_on = line->running != NOBODY && has_work(replay, line->running);
    if (goes_on && !line->slice_left && replay->card->uninterrupted)
        line->slice_left = rest_of_kernel(replay, line->running);
    if (goes_on && line->slice_left) return;
    if (!goes_on) end_run(replay);
    start(replay, replay->slots ? next_worker(replay, line->last) : NOBODY);
}

/* ---- sampling periods ------------------------------------------------------------------------ */

static void begin_period(struct replay *replay, uint64_t number) {
    struct sim_timeline *line = replay->line;
    size_t bytes = replay->slots * sizeof *line->work;
    int rolls = number - line->period > 1 ? 2 : 1; /* 2: a whole period without work lies in
                                                      between */
    for (int i = 0; i < rolls; i++) {
        line->busy_before = line->busy_then;
        line->busy_then = line->busy;
        memcpy(line->work_before, line->work_then, bytes);
        memcpy(line->work_then, line->work, bytes);
    }
    line->period = number;
}

/* ---- replay --------------------------------------------------------------------------------- */

/* Advances by one step, of at most `limit` ns, in which the running process does not change. */
static void step(struct replay *replay, uint64_t limit) {
    struct sim_timeline *line = replay->line;
    choose(replay);
    if (line->running == NOBODY) {
        line->now += limit;
    } else if (line->switch_left) {
        uint64_t length = least(limit, line->switch_left);
        line->switch_left -= length;
        line->now += length;
    } else {
        uint64_t length = least(limit, backlog(replay, line->running));
        work_for(replay, least(length, line->slice_left));
    }
}

static void replay_until(struct replay *replay, uint64_t end) {
    struct sim_timeline *line = replay->line;
    uint64_t period = replay->card->period_ns;
    while (line->now < end) {
        uint64_t boundary = (line->now / period + 1) * period;
        bool idle = line->running == NOBODY && next_worker(replay, line->last) == NOBODY;
        step(replay, (idle ? end : least(end, boundary)) - line->now);
        if (line->now / period != line->period) begin_period(replay, line->now / period);
    }
    if (line->running != NOBODY && !backlog(replay, line->running)) end_run(replay);
}

static void copy_timeline(struct sim_timeline *to, const struct sim_timeline *from,
                          uint32_t slots) {
    memcpy(to, from, offsetof(struct sim_timeline, work));
    memcpy(to->work, from->work, slots * sizeof *to->work);
    memcpy(to->work_before, from->work_before, slots * sizeof *to->work);
    memcpy(to->work_then, from->work_then, slots * sizeof *to->work);
}

static void begin(struct replay *replay, struct sim *sim, unsigned number,
                  struct sim_timeline *line) {
    replay->sim = sim;
    replay->card = &sim->state->cards[number];
    replay->number = number;
    replay->slots = sim->state->slots_touched;
    replay->line = line;
    copy_timeline(line, &replay->card->sides[replay->card->side], replay->slots);
    if (line->now) return;
    line->now = sim_now(sim); /* the card has not been looked at before */
    line->running = line->last = NOBODY;
    line->period = line->now / replay->card->period_ns;
}

/* The new state is written to the other side and becomes valid by one store, so a death in between
 * leaves the old state. */
const struct sim_timeline *sim_advance(struct sim *sim, unsigned card, uint64_t now) {
    struct replay replay = {0};
    uint32_t other = !sim->state->cards[card].side;
    begin(&replay, sim, card, &sim->state->cards[card].sides[other]);
    replay_until(&replay, now);
    replay.card->side = other;
    return replay.line;
}

uint64_t sim_predict(struct sim *sim, unsigned card, int slot, uint64_t work) {
    static struct sim_timeline aside[SIM_MAX_CARDS]; /* guarded by the card's lock */
    struct replay replay = {.foresight = true};
    begin(&replay, sim, card, &aside[card]);
    struct sim_timeline *line = replay.line;
    for (int i = 0; i < FORESEEN && line->work[slot] < work; i++) {
        step(&replay, line->running == slot ? work - line->work[slot] : SIM_NEVER);
        if (line->running == NOBODY) return SIM_NEVER;
    }
    /* The last step may have gone beyond the result if it began with another slot's work; or the
     * prediction ended after FORESEEN steps. */
    return line->now + work - line->work[slot];
}
