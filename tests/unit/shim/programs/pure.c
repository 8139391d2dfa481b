/* Stand-ins for what the shim's pure parts need, so that tests can call these alone. */
#include <string.h>

#include <stdlib.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "region/agent_heartbeat.h"
#include "region/regions.h"
#include "time/charged_utilization.h"
#include "time/container_budget.h"
#include "time/costs.h"

struct regions *regions_current;

bool regions_refresh(struct regions *regions) {
    return regions != NULL;
}

void pure_forget(void);
int64_t pure_ns(const void *work, uint64_t shape);
void pure_guess(const void *work, uint64_t shape, uint64_t *found);

/* A process of a container that always has work. */
struct worker {
    uint64_t did, longest_wait; /* ns */
    uint64_t looks_at, busy_until, began_at;
    struct regions regions;
};
void pure_contend(struct terms *terms, uint64_t piece, uint64_t span, uint64_t *did, uint64_t *waits);

int64_t pure_reach(struct terms *terms, uint64_t piece, uint64_t span, int64_t scribbled);

uint64_t pure_relieve(struct terms *terms, uint64_t period, uint64_t piece, unsigned pieces,
                      unsigned windows);

void pure_forget(void) {
    memset(costs, 0, sizeof costs);
}

int64_t pure_ns(const void *work, uint64_t shape) {
    return costs_ns(work, shape);
}

void pure_guess(const void *work, uint64_t shape, uint64_t *found) {
    struct guess guess = costs_of(work, shape);
    found[0] = guess.kind;
    found[1] = guess.fresh;
    found[2] = guess.ns;
    found[3] = guess.likely;
}

/* ---- the rate that follows from the limits -------------------------------------------------------------- */

uint64_t pure_rate(uint32_t mode, uint32_t share, uint32_t spare, uint32_t active, uint32_t paused);

/* Basis points of the card's time if a live agent has written these. UINT64_MAX: not limited. */
uint64_t pure_rate(uint32_t mode, uint32_t share, uint32_t spare, uint32_t active, uint32_t paused) {
    struct mizar_limits *limits = calloc(1, sizeof *limits);
    struct mizar_usage *usage = calloc(1, sizeof *usage);
    struct regions regions = {.limits = limits, .usage = usage, .process = process_state_new()};
    struct terms terms;
    limits->live[0] = (struct mizar_limits_live){
        .spare_share = spare, .active_weight = active, .paused = paused, .beat = 1};
    regions.process->cards[0].compute_mode = mode;
    regions.process->cards[0].core_share = share;
    uint64_t rate = budget_terms(&regions, 0, clock_now(), &terms) ? terms.rate : UINT64_MAX;
    free(limits);
    free(usage);
    return rate;
}

/* ---- two processes of a container -------------------------------------------------------------------- */

#define START UINT64_C(1000000000000)
#define US UINT64_C(1000)

static void begin(struct worker *worker, uint32_t slot, struct mizar_limits *limits,
                  struct mizar_usage *usage) {
    memset(worker, 0, sizeof *worker);
    worker->regions.limits = limits;
    worker->regions.usage = usage;
    worker->regions.process = process_state_new();
    worker->regions.process->slot = slot;
    worker->looks_at = START + slot * 3000 * US;
    worker->began_at = START;
}

/* Launches a piece if it may, and says when it will look again. `free_at`: when the card is done. */
static void look(struct worker *worker, const struct terms *terms, uint64_t piece, uint64_t *free_at) {
    uint64_t now = worker->looks_at, extra = 0, again = now;
    uint64_t queue = worker->busy_until > now ? worker->busy_until - now : 0;
    struct ask ask = {.now = now, .cost = piece, .likely = piece, .queue = queue};
    budget_open(&worker->regions, 0, queue ? now - 1 : 0, now + queue);
    worker->looks_at = now + 20 * US;
    if (!budget_take(&worker->regions, 0, terms, &ask, &extra, &again)) {
        worker->looks_at = larger(again, now) + 40 * US; /* no thread wakes up at once */
        return;
    }
    *free_at = worker->busy_until = larger(now, *free_at) + piece;
    worker->did += piece;
    worker->longest_wait = larger(worker->longest_wait, now - worker->began_at);
    worker->began_at = now;
}

/* Two of them for `span` ns: the work of each, and its longest wait between two launches. */
void pure_contend(struct terms *terms, uint64_t piece, uint64_t span, uint64_t *did, uint64_t *waits) {
    struct worker workers[2];
    struct mizar_limits *limits = calloc(1, sizeof *limits);
    struct mizar_usage *usage = calloc(1, sizeof *usage);
    uint64_t free_at = START;
    usage->slot_high = 2;
    usage->cards[0].compute.paid_until = START;
    for (uint32_t i = 0; i < 2; i++) begin(&workers[i], i, limits, usage);
    for (struct worker *next = workers; next->looks_at < START + span;
         next = &workers[workers[0].looks_at > workers[1].looks_at])
        look(next, terms, piece, &free_at);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t since = START + span - workers[i].began_at;
        did[i] = workers[i].did;
        waits[i] = larger(workers[i].longest_wait, since);
    }
    free(limits);
    free(usage);
}

/* ---- one that writes false values -------------------------------------------------------------------- */

/*
 * It has work for `span` ns without a pause, and writes for the others that its windows were too short by
 * `scribbled` ns. Returns by how much its work exceeded their ends in total.
 */
int64_t pure_reach(struct terms *terms, uint64_t piece, uint64_t span, int64_t scribbled) {
    struct worker worker;
    struct mizar_limits *limits = calloc(1, sizeof *limits);
    struct mizar_usage *usage = calloc(1, sizeof *usage);
    uint64_t free_at = START, window_end = 0, did = 0;
    int64_t over = 0;
    usage->slot_high = 1;
    usage->cards[0].compute.paid_until = START;
    begin(&worker, 0, limits, usage);
    while (worker.looks_at < START + span) {
        uint64_t end = bucket_window_end(terms, worker.looks_at), done_at = worker.busy_until;
        if (scribbled) usage->cards[0].compute.over = scribbled;
        look(&worker, terms, piece, &free_at);
        if (worker.did == did) continue;
        if (window_end && end != window_end) over += (int64_t)(done_at - window_end);
        window_end = end;
        did = worker.did;
    }
    free(limits);
    free(usage);
    return over;
}

/* ---- two whose work overlaps ------------------------------------------------------------------------- */

/* It has no other work on the card. */
static void settle(struct worker *worker, const struct terms *terms, uint64_t now) {
    struct done work = {.from = worker->began_at, .to = worker->busy_until,
                        .since = worker->began_at};
    work.most = work.to - work.from;
    if (work.to) budget_settle(&worker->regions, 0, terms, now, &work);
    budget_open(&worker->regions, 0, 0, 0);
}

static void launch(struct worker *worker, const struct terms *terms, uint64_t now, uint64_t piece) {
    settle(worker, terms, now);
    worker->began_at = now;
    worker->busy_until = now + piece;
    budget_open(&worker->regions, 0, worker->began_at, worker->busy_until);
}

/*
 * In `windows` windows they take turns after two pieces. The one that launches finds that its last
 * piece is done, perhaps since the window before. Then, in as many windows, both have a piece on the card
 * at once, and check when it is done. Returns what the container is charged.
 */
uint64_t pure_relieve(struct terms *terms, uint64_t period, uint64_t piece, unsigned pieces,
                      unsigned windows) {
    struct worker workers[2];
    struct mizar_limits *limits = calloc(1, sizeof *limits);
    struct mizar_usage *usage = calloc(1, sizeof *usage);
    uint64_t now = START;
    usage->slot_high = 2;
    for (uint32_t i = 0; i < 2; i++) begin(&workers[i], i, limits, usage);
    for (unsigned i = 0; i < windows * pieces; i++) {
        now = START + i / pieces * period + i % pieces * piece;
        launch(&workers[i / 2 % 2], terms, now, piece);
    }
    for (unsigned i = 0; i < windows; i++) {
        now = START + (windows + i) * period;
        for (uint32_t j = 0; j < 2; j++) launch(&workers[j], terms, now, piece);
        for (uint32_t j = 0; j < 2; j++) settle(&workers[j], terms, now + piece);
        for (uint32_t j = 0; j < 2; j++) workers[j].busy_until = 0;
    }
    uint64_t charged = usage->cards[0].compute.charged_ns;
    free(limits);
    free(usage);
    return charged;
}

/* ---- moments that threads and processes read at once, and use one after another ---------------------- */

unsigned pure_percent(uint64_t late);
uint64_t pure_longest(uint64_t late);
bool pure_lives(int64_t after, uint32_t heartbeat_ms);

/* The shown utilization of a card that was always busy, after a thread was `late` ns late. */
unsigned pure_percent(uint64_t late) {
    struct mizar_usage *usage = calloc(1, sizeof *usage);
    struct regions regions = {.usage = usage};
    uint64_t now = clock_now(), busy = 200000 * US;
    utilization_note(&regions, 0, now - busy);
    usage->cards[0].compute.charged_ns += busy;
    utilization_note(&regions, 0, now);
    utilization_note(&regions, 0, now - late);
    unsigned percent = utilization_charged(&regions, 0);
    free(usage);
    return percent;
}

/* The longest piece of a container, after a process with short ones was `late` ns late. */
uint64_t pure_longest(uint64_t late) {
    struct mizar_usage *usage = calloc(1, sizeof *usage);
    struct regions regions = {.usage = usage};
    budget_want(&regions, 0, START, 50000 * US);
    budget_want(&regions, 0, START - late, 1000 * US);
    uint64_t longest = usage->cards[0].compute.longest_ns;
    free(usage);
    return longest;
}

/*
 * Whether the agent counts as alive `after` ns after its only heartbeat was seen; negative for a
 * thread that is late. `heartbeat_ms`: of the limits file.
 */
bool pure_lives(int64_t after, uint32_t heartbeat_ms) {
    struct mizar_limits *limits = calloc(1, sizeof *limits);
    struct regions regions = {.limits = limits, .process = process_state_new()};
    limits->live[0].beat = 1;
    limits->heartbeat_ms = heartbeat_ms;
    bool lives = agent_lives(&regions, 0, START) && agent_lives(&regions, 0, START + (uint64_t)after);
    process_state_drop(regions.process);
    free(limits);
    return lives;
}
