#include "time/container_budget.h"

#include <linux/futex.h>
#include <time.h>

#include "base/atomics.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "base/sys.h"
#include "region/agent_heartbeat.h"
#include "time/costs.h"
#include "time/process_turns.h"

#define MS UINT64_C(1000000)
#define WAIT_MOST (100 * MS)     /* then everything is looked at again */
#define WAIT_LEAST (20 * 1000)
#define RATE_LEAST 100           /* basis points, so that a wait has an end */
#define LONGEST_FADES (5000 * MS) /* windows of another length move everybody's: not too often */
#define LONGEST_MOST (100 * MS)
#define DEBT_MOST (600 * 1000 * MS)
#define OTHERS_LEFT (MS / 4) /* of others' work on the card when one's own is added: enough to lose
                                no moment, and little that takes turns with it */
#define OTHERS_MOST (20 * MS) /* a process that died does not say that it has finished */
#define FORGOTTEN (1000 * MS) /* what a window had too much or too little, if the next is so far away */
#define GUESS_SHORT (10 * MS) /* so much longer others' work may take than they have said */
#define UNTOLD (2 * MS)       /* of what they were granted; measured: with less, much is lost of three
                                processes' work, with more, much charged twice */
#define UNCHARGED_MOST (200 * MS)
#define NOTICED_AFTER (150 * MS)
#define FUTURE_MOST (10 * MS) /* clocks of the card and of the machine are not the same */

static struct mizar_compute *shared(struct regions *regions, int card) {
    return &regions->usage->cards[card].compute;
}

static const struct mizar_limits_live *live_of(struct regions *regions, int card) {
    return &regions->limits->live[card];
}

/*
 * Each process keeps an account of its own as well, of what it spent itself: so that shared words
 * that somebody scribbled on let no process have more than the container's share.
 */
static uint64_t *own_paid(struct regions *regions, int card) {
    return &regions->process->cards[card].paid_until;
}

static void correct(uint64_t *word, const struct terms *terms, int64_t more) {
    uint64_t seen = load_relaxed(word);
    while (more && !swap_relaxed(word, &seen, bucket_correct(terms, seen, more))) continue;
}

/* ---- terms ------------------------------------------------------------------------------------ */

static uint64_t weighted(uint64_t share, uint64_t all) {
    return all > share ? share * MIZAR_SHARE_FULL / all : MIZAR_SHARE_FULL;
}

/* Has somebody who lives just lent the card's time to a container that has no share of its own? */
static bool lends(const struct mizar_limits_live *live, bool fresh) {
    return fresh && load_relaxed(&live->spare_share);
}

static uint64_t rate_of(const struct mizar_limits_live *live, uint32_t mode, uint64_t share,
                        bool fresh) {
    if (mode == MIZAR_COMPUTE_SOFT && fresh) share += load_relaxed(&live->spare_share);
    if (mode == MIZAR_COMPUTE_WEIGHTED && fresh && load_relaxed(&live->active_weight))
        share = weighted(share, load_relaxed(&live->active_weight));
    return smaller(larger(share, RATE_LEAST), MIZAR_SHARE_FULL);
}

/* Was it so lately that neighbours can have been there, before the node agent gave each a window? */
static bool is_recent(const struct process_card *own, uint64_t now) {
    return now - load_relaxed(&own->alone_at) < NOTICED_AFTER;
}

static void note_alone(struct process_card *own, uint64_t now, uint64_t ns) {
    if (is_recent(own, now)) ns += load_relaxed(&own->alone_ns);
    else store_relaxed(&own->alone_at, now);
    store_relaxed(&own->alone_ns, ns);
}

static void refund(struct regions *regions, int card, const struct terms *terms, uint64_t ns) {
    correct(&shared(regions, card)->paid_until, terms, -(int64_t)ns);
    correct(own_paid(regions, card), terms, -(int64_t)ns);
}

/*
 * A container that gets its first window shared the card with its neighbours until now: of what was charged for
 * work that was not known, by the clock, as much was theirs as is now. Nothing else is given back,
 * or a neighbour that comes and goes would be worth GPU time.
 */
static void begin_windows(struct regions *regions, int card, const struct terms *terms, uint64_t now) {
    struct process_card *own = &regions->process->cards[card];
    uint64_t charged = __atomic_exchange_n(&own->alone_ns, 0, __ATOMIC_RELAXED);
    costs_doubt();
    store_relaxed(&own->window_at, now);
    if (is_recent(own, now) && terms->rate)
        refund(regions, card, terms, charged - bucket_window_part(terms, charged));
}

static void notice_window(struct regions *regions, int card, const struct terms *terms, uint64_t now) {
    struct process_card *own = &regions->process->cards[card];
    uint64_t before = load_relaxed(&own->window);
    if (terms->window == before || !swap_relaxed(&own->window, &before, terms->window)) return;
    if (!before) begin_windows(regions, card, terms, now);
}

bool budget_terms(struct regions *regions, int card, uint64_t now, struct terms *terms) {
    const struct mizar_limits_live *live = live_of(regions, card);
    struct process_card *own = &regions->process->cards[card];
    regions_fresh(regions);
    uint32_t mode = load_relaxed(&own->compute_mode);
    if (mode == MIZAR_COMPUTE_NONE) return false;
    bool fresh = agent_lives(regions, card, now);
    uint32_t share = load_relaxed(&own->core_share);
    bool paused = mode == MIZAR_COMPUTE_STOPPED || (fresh && load_relaxed(&live->paused)) ||
                  (mode == MIZAR_COMPUTE_SOFT && !share && !lends(live, fresh));
    terms->rate = paused ? 0 : rate_of(live, mode, share, fresh);
    terms->window = load_relaxed(&live->window);
    notice_window(regions, card, terms, now);
    terms->since = load_relaxed(&own->window_at);
    terms->longest = smaller(load_relaxed(&shared(regions, card)->longest_ns), LONGEST_MOST);
    return true;
}

/* ---- work that is on the card -------------------------------------------------------------------- */

void budget_open(struct regions *regions, int card, uint64_t since, uint64_t until) {
    struct mizar_slot_card *own = &regions->usage->slots[regions->process->slot].cards[card];
    store_relaxed(&own->open_until, until);
    store_relaxed(&own->open_since, since);
}

/* The time within [from, to] in which that process says that it has work on the card. */
static uint64_t open_part(const struct mizar_slot_card *work, uint64_t from, uint64_t to) {
    uint64_t since = load_relaxed(&work->open_since), until = smaller(load_relaxed(&work->open_until), to);
    uint64_t begin = larger(since, from);
    return since && until > begin ? until - begin : 0;
}

uint64_t budget_open_time(struct regions *regions, int card, uint64_t from, uint64_t to,
                          unsigned but) {
    uint64_t most = 0;
    for (unsigned slot = 0; slot < regions_slots_used(regions->usage); slot++) {
        const struct mizar_slot_card *work = &regions->usage->slots[slot].cards[card];
        if (slot != but) most = larger(most, open_part(work, from, to));
    }
    return most;
}

/* ---- the budget -------------------------------------------------------------------------------- */

/* A word of the future that is nonsense is brought back, so that nobody waits for it for ever. */
static uint64_t sane(uint64_t *word, uint64_t now, uint64_t most) {
    uint64_t seen = load_relaxed(word);
    while (seen > now + most && !swap_relaxed(word, &seen, now + most)) continue;
    return smaller(seen, now + most);
}

static void spend(uint64_t *word, const struct terms *terms, uint64_t now, uint64_t ns) {
    uint64_t seen = load_relaxed(word);
    while (!swap_relaxed(word, &seen, bucket_spend(terms, seen, now, ns))) continue;
}

/* What other processes of the container have on the card: ns until it is done, if they guess right. */
static uint64_t queue_of_others(struct regions *regions, int card, uint64_t now) {
    uint64_t most = budget_open_time(regions, card, now, UINT64_MAX, regions->process->slot);
    return smaller(most, OTHERS_MOST);
}

static int64_t bounded(int64_t value, uint64_t most) {
    int64_t bound = (int64_t)most;
    return value > bound ? bound : value < -bound ? -bound : value;
}

/* The ends of windows and of work in them: the container's, or those of this process alone. */
struct ends {
    uint64_t *window, *work;
    int64_t *over;
};

static struct ends shared_ends(struct regions *regions, int card) {
    struct mizar_compute *compute = shared(regions, card);
    return (struct ends){&compute->window_end, &compute->work_end, &compute->over};
}

static struct ends own_ends(struct regions *regions, int card) {
    struct process_card *own = &regions->process->cards[card];
    return (struct ends){&own->window_end, &own->work_end, &own->over};
}

static int64_t over_until_now(struct ends ends) {
    return bounded(load_relaxed(ends.over), LONGEST_MOST);
}

/* With siblings, the process's own work ends no later than the container's. */
static int64_t over_at_least(struct regions *regions, int card) {
    int64_t all = over_until_now(shared_ends(regions, card));
    int64_t own = over_until_now(own_ends(regions, card));
    return all > own ? all : own;
}

/* Windows with much time in between have nothing to make up for. */
static void add_last_window(struct ends ends, const struct terms *terms, uint64_t last,
                            uint64_t next) {
    int64_t over = over_until_now(ends);
    over += bounded((int64_t)(load_relaxed(ends.work) - last), LONGEST_MOST);
    over = next - last < FORGOTTEN ? bounded(over, terms->longest / 2) : 0;
    __atomic_store_n(ends.over, over, __ATOMIC_RELAXED);
}

/*
 * The last piece of a window is done before its end or behind it. Taken together that shall be none of
 * both: a container that fell short in one window may reach further over the end of the next.
 */
static void note_end(struct ends ends, const struct terms *terms, uint64_t now, uint64_t work_end) {
    uint64_t end = bucket_window_end(terms, now), last = load_relaxed(ends.window);
    if (!end) return;
    bool later = end > last || last > end + FORGOTTEN; /* or nonsense that somebody scribbled */
    if (later && swap_relaxed(ends.window, &last, end)) {
        add_last_window(ends, terms, last, end);
        store_relaxed(ends.work, work_end);
    }
    if (work_end > load_relaxed(ends.work)) store_relaxed(ends.work, work_end);
}

bool budget_take(struct regions *regions, int card, const struct terms *terms, struct ask *ask,
                 uint64_t *extra, uint64_t *again) {
    uint64_t *word = &shared(regions, card)->paid_until, next;
    uint64_t seen = sane(word, ask->now, DEBT_MOST);
    if (!terms->rate) {
        *again = ask->now + WAIT_MOST;
        return false;
    }
    uint64_t others = terms_free(terms) ? 0 : queue_of_others(regions, card, ask->now);
    if (others > OTHERS_LEFT) {
        *again = ask->now + others - OTHERS_LEFT;
        turns_want(regions, card, *again);
        return false;
    }
    ask->queue += others;
    ask->over = over_at_least(regions, card);
    do {
        ask->paid = larger(seen, load_relaxed(own_paid(regions, card)));
        if (!bucket_admits(terms, ask, again)) {
            turns_want(regions, card, *again);
            return false;
        }
        if (!terms_free(terms) && !turns_take(regions, card, ask, again)) return false;
        *extra = bucket_extra(terms, ask, *extra);
        next = bucket_spend(terms, seen, ask->now, ask->cost + *extra);
    } while (!swap_relaxed(word, &seen, next));
    spend(own_paid(regions, card), terms, ask->now, ask->cost + *extra);
    uint64_t work_end = ask->now + ask->queue + ask->likely + *extra;
    note_end(shared_ends(regions, card), terms, ask->now, work_end);
    note_end(own_ends(regions, card), terms, ask->now, work_end);
    return true;
}

void budget_refund(struct regions *regions, int card, uint64_t ns) {
    struct terms terms;
    if (!ns || !budget_terms(regions, card, clock_now(), &terms) || !terms.rate) return;
    refund(regions, card, &terms, ns);
}

/* ---- charging ---------------------------------------------------------------------------------- */

/*
 * Moves the mark to `to` if that is later, and returns where the part of [from, to] begins that it
 * passed: `to` when there is none. *before is where it was.
 */
static uint64_t pass(uint64_t *mark, uint64_t now, uint64_t from, uint64_t to, uint64_t *before) {
    uint64_t seen = sane(mark, now, FUTURE_MOST);
    do *before = seen;
    while (to > seen && !swap_relaxed(mark, &seen, to));
    return smaller(larger(from, *before), to);
}

/*
 * Takes from the moments with work that nobody was charged for yet, to which the caller adds those that
 * passed with the work that it settles. What is left is for the threads that still settle work of these
 * moments: `claimed` at most.
 */
static uint64_t draw(uint64_t *uncharged, uint64_t passed, uint64_t wanted, uint64_t claimed) {
    uint64_t seen = load_relaxed(uncharged), there;
    do there = smaller(seen, UNCHARGED_MOST) + passed;
    while (!swap_relaxed(uncharged, &seen, smaller(there - smaller(wanted, there), claimed)));
    return smaller(wanted, there);
}

static uint64_t own_part(const void *terms, uint64_t from, uint64_t to) {
    return bucket_own_part(terms, from, to);
}

/* The container's own part of [from, to] in which another of its processes may have had work. */
static uint64_t claim_of(const struct mizar_slot_card *work, const struct terms *terms,
                         uint64_t from, uint64_t to) {
    uint64_t since = load_relaxed(&work->open_since), until = load_relaxed(&work->open_until) + GUESS_SHORT;
    return since ? bucket_own_part(terms, larger(since, from), smaller(until, to)) : 0;
}

struct claims {
    uint64_t passed; /* of the moments that the mark passed over: the most that one may claim */
    uint64_t all;    /* of all moments until now: what they may claim together */
};

static struct claims claims_of_others(struct regions *regions, int card, const struct terms *terms,
                                      uint64_t now, uint64_t from, uint64_t to) {
    struct claims claims = {0, 0};
    for (unsigned slot = 0; slot < regions_slots_used(regions->usage); slot++) {
        const struct mizar_slot_card *work = &regions->usage->slots[slot].cards[card];
        if (slot == regions->process->slot) continue;
        claims.passed = larger(claims.passed, claim_of(work, terms, from, to));
        claims.all += claim_of(work, terms, 0, now);
    }
    return claims;
}

/*
 * What of it the container has to pay: for no moment twice, whichever process it was. Where the mark
 * moves over moments before this process had any work, another one had, which it has yet to settle.
 */
static uint64_t charge_shared(struct regions *regions, int card, const struct terms *terms,
                              uint64_t now, const struct done *done, uint64_t late,
                              uint64_t own) {
    struct mizar_compute *compute = shared(regions, card);
    uint64_t before, begin = pass(&compute->busy_until, now, done->since, done->to, &before);
    uint64_t passed = bucket_own_part(terms, begin, done->to);
    uint64_t claimed = bucket_own_part(terms, done->since, done->to) + UNTOLD;
    struct claims others = claims_of_others(regions, card, terms, now, before, done->since);
    if (passed) passed += others.passed;
    return draw(&compute->uncharged_ns, passed + late, own, claimed + others.all);
}

void budget_count(struct regions *regions, int card, uint64_t ns) {
    struct mizar_slot_card *slot = &regions->usage->slots[regions->process->slot].cards[card];
    __atomic_fetch_add(&shared(regions, card)->charged_ns, ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->gpu_time_ns, ns, __ATOMIC_RELAXED);
}

uint64_t budget_settle(struct regions *regions, int card, const struct terms *terms, uint64_t now,
                       struct done *done) {
    struct process_card *process = &regions->process->cards[card];
    uint64_t late;
    done->passed = interval_union_add(&process->moments, done->from, done->to, own_part, terms, &late);
    uint64_t own = draw(&process->uncharged_ns, done->passed, done->most, UINT64_MAX);
    uint64_t charged = charge_shared(regions, card, terms, now, done, late, own);
    budget_count(regions, card, charged);
    if (!terms->window && done->fresh) note_alone(process, now, charged);
    if (!terms->rate) return own;
    correct(&shared(regions, card)->paid_until, terms, (int64_t)(charged - done->reserved));
    correct(own_paid(regions, card), terms, (int64_t)(own - done->reserved));
    return own;
}

/* ---- waiting ------------------------------------------------------------------------------------ */

uint32_t budget_wake(struct regions *regions, int card) {
    return load_acquire(&live_of(regions, card)->wake);
}

void budget_wait(struct regions *regions, int card, uint32_t wake, uint64_t now, uint64_t until) {
    uint64_t ns = until > now ? smaller(until - now, WAIT_MOST) : 0;
    ns = larger(ns, WAIT_LEAST);
    const struct timespec span = {0, (long)ns};
    store_relaxed(&shared(regions, card)->wanted_at, now + ns); /* a process that waits wants the card */
    SYS(SYS_futex, &live_of(regions, card)->wake, FUTEX_WAIT, wake, &span, NULL, 0);
    __atomic_fetch_add(&shared(regions, card)->waited_ns, clock_now() - now, __ATOMIC_RELAXED);
}

/* A long piece is forgotten when none as long comes for a while. */
void budget_want(struct regions *regions, int card, uint64_t now, uint64_t longest) {
    struct mizar_compute *compute = shared(regions, card);
    uint64_t known = load_relaxed(&compute->longest_ns);
    store_relaxed(&compute->wanted_at, now);
    if (longest < known - known / 8 && now - load_relaxed(&compute->longest_at) < LONGEST_FADES) return;
    store_relaxed(&compute->longest_ns, longest);
    store_relaxed(&compute->longest_at, now);
}
