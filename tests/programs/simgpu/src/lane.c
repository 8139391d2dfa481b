#include "lane.h"

#include <stdlib.h>
#include <string.h>

#include "harsh.h"

pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;

static struct lane lanes[SIM_MAX_CARDS];

static void open_lane(struct lane *lane, unsigned card) {
    lane->card = card;
    lane->sms = (unsigned)driver.sim.state->cards[card].sm_count;
    lane->work = driver.sim.state->processes[driver.sim.slot].inherited[card];
    lane->sm_free = calloc(lane->sms, sizeof *lane->sm_free);
    const struct sim_card *info = &driver.sim.state->cards[card];
    lane->seen_runs = info->sides[info->side].runs;
}

struct lane *lane_of(unsigned card) {
    struct lane *lane = &lanes[card];
    if (!lane->sm_free) open_lane(lane, card);
    return lane;
}

/* ---- marks ---------------------------------------------------------------------------------- */

struct mark *mark_new(void) {
    struct mark *mark = calloc(1, sizeof *mark);
    if (!mark) abort();
    mark->users = 1;
    return mark;
}

struct mark *mark_keep(struct mark *mark) {
    mark->users++;
    return mark;
}

static void take_off(struct mark *mark) {
    struct lane *lane = mark->lane;
    if (mark->before) mark->before->after = mark->after;
    else lane->first = mark->after;
    if (mark->after) mark->after->before = mark->before;
    else lane->last = mark->before;
    mark->before = mark->after = NULL;
}

void mark_drop(struct mark *mark) {
    if (!mark || --mark->users) return;
    if (mark->state == MARK_WORK) take_off(mark);
    free(mark);
}

void mark_set_time(struct mark *mark, uint64_t time) {
    if (mark->state == MARK_WORK) take_off(mark);
    mark->state = MARK_TIME;
    mark->at = time;
}

/* Marks are added nearly in order, so the place is searched from the end. */
void mark_set_work(struct mark *mark, struct lane *lane, uint64_t work) {
    struct mark *before = lane->last;
    while (before && before->at > work) before = before->before;
    mark->state = MARK_WORK;
    mark->at = work;
    mark->lane = lane;
    mark->before = before;
    mark->after = before ? before->after : lane->first;
    if (mark->after) mark->after->before = mark;
    else lane->last = mark;
    if (before) before->after = mark;
    else lane->first = mark;
}

/* ---- looking at the card -------------------------------------------------------------------- */

/* Gives a time to all marks in the run that began at `start` and took the lane's work from `before`
 * to `before + length`. */
static void pass(struct lane *lane, uint64_t start, uint64_t before, uint64_t length) {
    while (lane->first && lane->first->at <= before + length) {
        struct mark *mark = lane->first;
        mark_set_time(mark, mark->at > before ? start + (mark->at - before) : start);
    }
}

static void read_runs(struct lane *lane, const struct sim_timeline *line) {
    const struct sim_run *runs = driver.sim.state->cards[lane->card].runs;
    uint32_t slot = (uint32_t)driver.sim.slot;
    uint64_t kept = line->runs > SIM_RUNS - 1 ? line->runs - (SIM_RUNS - 1) : 0;
    if (lane->seen_runs < kept) lane->seen_runs = kept;
    if (!lane->first) lane->seen_runs = line->runs;
    for (; lane->seen_runs < line->runs; lane->seen_runs++) {
        const struct sim_run *run = &runs[lane->seen_runs % SIM_RUNS];
        if (run->slot == slot) pass(lane, run->start, run->before, run->length);
    }
    if (line->run_open && line->running == driver.sim.slot)
        pass(lane, line->run_start, line->run_before, line->work[slot] - line->run_before);
}

static void look(struct lane *lane) {
    sim_lock_card(&driver.sim, lane->card);
    const struct sim_timeline *line = sim_advance(&driver.sim, lane->card, sim_now(&driver.sim));
    read_runs(lane, line);
    lane->work = line->work[driver.sim.slot];
    lane->wall = line->now;
    sim_unlock_card(&driver.sim, lane->card);
}

/* Work cannot be done faster than time passes, so the card need not be looked at before enough time
 * has passed. */
bool lane_reached(struct lane *lane, uint64_t work) {
    if (work <= lane->work) return true;
    uint64_t now = sim_now(&driver.sim);
    if (now < lane->wall || now - lane->wall < work - lane->work) return false;
    look(lane);
    return work <= lane->work;
}

uint64_t lane_when(struct lane *lane, uint64_t work) {
    sim_lock_card(&driver.sim, lane->card);
    uint64_t when = sim_predict(&driver.sim, lane->card, driver.sim.slot, work);
    sim_unlock_card(&driver.sim, lane->card);
    return when;
}

bool mark_reached(struct mark *mark) {
    if (mark->state == MARK_WORK) lane_reached(mark->lane, mark->at);
    return mark->state == MARK_TIME && mark->at <= sim_now(&driver.sim);
}

/* ---- placing work --------------------------------------------------------------------------- */

/* Takes the `count` SMs that are free first until `end`, and keeps the array sorted. */
static void occupy(struct lane *lane, unsigned count, uint64_t end) {
    uint64_t *sm = lane->sm_free;
    unsigned to = 0, from = count;
    while (from < lane->sms && sm[from] <= end) sm[to++] = sm[from++];
    for (; count; count--) sm[to++] = end;
}

/* Stores the end of a kernel before `placed` counts it, so that readers of the card see only
 * complete values. */
static void note_end(const struct lane *lane, uint64_t end) {
    struct sim_process *process = &driver.sim.state->processes[driver.sim.slot];
    sim_u64 *placed = &process->placed[lane->card], *ends = process->ends[lane->card];
    uint64_t last = *placed ? ends[(*placed - 1) % SIM_ENDS] : 0;
    ends[*placed % SIM_ENDS] = end > last ? end : last;
    ++*placed;
}

/* The number of kernels that may wait on a card, at most as many as `ends` keeps. 0: no limit. */
static uint64_t queue_room(const struct lane *lane) {
    uint64_t room = driver.sim.state->cards[lane->card].queue_kernels;
    return room < SIM_ENDS ? room : SIM_ENDS - 1;
}

struct mark *lane_full(struct lane *lane) {
    struct sim_process *process = &driver.sim.state->processes[driver.sim.slot];
    uint64_t placed = process->placed[lane->card], room = queue_room(lane);
    if (!room || placed < room) return NULL;
    uint64_t end = process->ends[lane->card][(placed - room) % SIM_ENDS];
    if (lane_reached(lane, end)) return NULL;
    struct mark *mark = mark_new();
    mark_set_work(mark, lane, end);
    return mark;
}

uint64_t lane_place(struct lane *lane, uint64_t after, unsigned sms, uint64_t ns) {
    ns = harsh_duration(&driver.sim.state->cards[lane->card], sim_now(&driver.sim), ns);
    uint64_t start = lane->sm_free[sms - 1];
    if (start < after) start = after;
    uint64_t looked = lane->wall;
    if (lane_reached(lane, start)) { /* the card is already further: the work cannot begin before
                                        now */
        if (lane->wall == looked) look(lane);
        if (start < lane->work) start = lane->work;
    }
    occupy(lane, sms, start + ns);
    sim_u64 *asked = &driver.sim.state->processes[driver.sim.slot].asked[lane->card];
    note_end(lane, start + ns);
    if (*asked < start + ns) *asked = start + ns;
    return start + ns;
}
