#include "time/container_budget.h"

#include <linux/futex.h>
#include <time.h>

#include "base/atomics.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "base/sys.h"
#include "time/costs.h"
#include "time/present_share.h"
#include "time/process_turns.h"

#define MS UINT64_C(1000000)
/* Longest wait (ns), after which a launch checks all conditions again. */
#define WAIT_MOST (100 * MS)
/* Shortest wait (ns). */
#define WAIT_LEAST (20 * 1000)
/*
 * The longest piece of work is remembered for this time (ns): to forget it changes the length of
 * the window, which moves the windows of all containers.
 */
#define LONGEST_FADES (5000 * MS)
/* Pieces of work count as no longer than this (ns). */
#define LONGEST_MOST (100 * MS)
/* `paid_until` may lie no further in the future than this (ns). */
#define DEBT_MOST (600 * 1000 * MS)
/*
 * A process adds work when the container's other processes have no more than this (ns) on the card:
 * enough that the card does not idle, and little that runs in turns with the new work.
 */
#define OTHERS_LEFT (MS / 4)
/*
 * Work of other processes counts as no longer than this (ns), since a process that died does not
 * report the end of its work.
 */
#define OTHERS_MOST (20 * MS)
/* The excess of earlier windows is forgotten if the next window ends this much later (ns). */
#define FORGOTTEN (1000 * MS)
/* Work of other processes may last this much longer (ns) than they have announced. */
#define GUESS_SHORT (10 * MS)
/*
 * Time (ns) that may be claimed for work that was granted and not announced yet. By measurements of
 * three processes, less loses much of their work, and more charges much of it twice.
 */
#define UNTOLD (2 * MS)
/* Most time (ns) with work that may stay uncharged. */
#define UNCHARGED_MOST (200 * MS)
/* Time (ns) that it may take from a neighbour's first work until the node agent sets windows. */
#define NOTICED_AFTER (150 * MS)
/*
 * `busy_until` may lie no further in the future than this (ns), since the card's clock differs from
 * the machine's.
 */
#define FUTURE_MOST (10 * MS)

static struct mizar_compute *shared(struct regions *regions, int card) {
    return &regions->usage->cards[card].compute;
}

static const struct mizar_limits_live *live_of(struct regions *regions, int card) {
    return &regions->limits->live[card];
}

/*
 * Each process also keeps an account of its own spending, so that it gets no more than the
 * container's share even if a program has overwritten the shared words.
 */
static uint64_t *own_paid(struct regions *regions, int card) {
    return &regions->process->cards[card].paid_until;
}

static void correct(uint64_t *word, const struct terms *terms, int64_t more) {
    uint64_t seen = load_relaxed(word);
    while (more && !swap_relaxed(word, &seen, bucket_correct(terms, seen, more))) continue;
}

/* ---- terms ----------------------------------------------------------------------------------- */

/*
 * Whether the time charged without a window is so recent that neighbours may have shared the card
 * already, without windows yet.
 */
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
 * A container that gets its first window has shared the card with its neighbours until now. Work of
 * unknown cost was charged by the clock; the neighbours' part of that, which is taken to be their
 * part of the new period, is refunded. Nothing else is, or a neighbour that comes and goes would
 * gain the container GPU time.
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
    struct process_card *own = &regions->process->cards[card];
    regions_fresh(regions);
    uint32_t mode = load_relaxed(&own->compute_mode);
    if (mode == MIZAR_COMPUTE_NONE) return false;
    terms->rate = present_share(regions, card, mode, now);
    terms->window = load_relaxed(&live_of(regions, card)->window);
    notice_window(regions, card, terms, now);
    terms->since = load_relaxed(&own->window_at);
    terms->longest = smaller(load_relaxed(&shared(regions, card)->longest_ns), LONGEST_MOST);
    return true;
}

/* ---- work on the card -------------------------------------------------------------------- */

void budget_open(struct regions *regions, int card, uint64_t since, uint64_t until) {
    struct mizar_slot_card *own = &regions->usage->slots[regions->process->slot].cards[card];
    store_relaxed(&own->open_until, until);
    store_relaxed(&own->open_since, since);
}

/* The part (ns) of [from, to] in which a process has announced work on the card. */
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

/* ---- the budget ------------------------------------------------------------------------------ */

/*
 * Reads a moment and lowers it to now + most if it lies later: an overwritten word must not make
 * anyone wait forever.
 */
static uint64_t sane(uint64_t *word, uint64_t now, uint64_t most) {
    uint64_t seen = load_relaxed(word);
    while (seen > now + most && !swap_relaxed(word, &seen, now + most)) continue;
    return smaller(seen, now + most);
}

static void spend(uint64_t *word, const struct terms *terms, uint64_t now, uint64_t ns) {
    uint64_t seen = load_relaxed(word);
    while (!swap_relaxed(word, &seen, bucket_spend(terms, seen, now, ns))) continue;
}

/* ns until the announced work of the container's other processes on the card should be done. */
static uint64_t queue_of_others(struct regions *regions, int card, uint64_t now) {
    uint64_t most = budget_open_time(regions, card, now, UINT64_MAX, regions->process->slot);
    return smaller(most, OTHERS_MOST);
}

static int64_t bounded(int64_t value, uint64_t most) {
    int64_t bound = (int64_t)most;
    return value > bound ? bound : value < -bound ? -bound : value;
}

/* The ends of the last window and of the work in it, of the container or of this process alone. */
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

/*
 * The larger of the container's and the process's own excess (ns), so that an overwritten shared
 * word cannot lower it below the latter: the process's work ends no later than the container's.
 */
static int64_t over_at_least(struct regions *regions, int card) {
    int64_t all = over_until_now(shared_ends(regions, card));
    int64_t own = over_until_now(own_ends(regions, card));
    return all > own ? all : own;
}

/*
 * Adds to the excess by how much work ended after its window; resets it if the windows are far
 * apart.
 */
static void add_last_window(struct ends ends, const struct terms *terms, uint64_t last,
                            uint64_t next) {
    int64_t over = over_until_now(ends);
    over += bounded((int64_t)(load_relaxed(ends.work) - last), LONGEST_MOST);
    over = next - last < FORGOTTEN ? bounded(over, terms->longest / 2) : 0;
    __atomic_store_n(ends.over, over, __ATOMIC_RELAXED);
}

/*
 * The last piece of work in a window ends before the window does, or after it. These differences
 * should cancel out: after a window that ended early, work may exceed the end of the next one more.
 */
static void note_end(struct ends ends, const struct terms *terms, uint64_t now, uint64_t work_end) {
    uint64_t end = bucket_window_end(terms, now), last = load_relaxed(ends.window);
    if (!end) return;
    bool later = end > last || last > end + FORGOTTEN; /* the latter: the word was overwritten */
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

/* ---- charging -------------------------------------------------------------------------------- */

/*
 * Moves the mark to `to` if that is later. Returns the beginning of the part of [from, to] that the
 * mark passed over, or `to` if there is none. *before: the mark's previous value.
 */
static uint64_t pass(uint64_t *mark, uint64_t now, uint64_t from, uint64_t to, uint64_t *before) {
    uint64_t seen = sane(mark, now, FUTURE_MOST);
    do *before = seen;
    while (to > seen && !swap_relaxed(mark, &seen, to));
    return smaller(larger(from, *before), to);
}

/*
 * Takes up to `wanted` ns from the time with work that was not charged yet, after adding
 * `passed` ns to it. The rest stays for threads that still have to settle work of that time, at
 * most `claimed` ns. Returns the ns taken.
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

/*
 * ns of the container's own part of [from, to] during which another of its processes may have had
 * work.
 */
static uint64_t claim_of(const struct mizar_slot_card *work, const struct terms *terms,
                         uint64_t from, uint64_t to) {
    uint64_t since = load_relaxed(&work->open_since), until = load_relaxed(&work->open_until) + GUESS_SHORT;
    return since ? bucket_own_part(terms, larger(since, from), smaller(until, to)) : 0;
}

struct claims {
    uint64_t passed; /* ns, of the time that the mark passed over: the most of any one process */
    uint64_t all;    /* ns, of all time until now: the sum over all other processes */
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
 * The ns that the container has to pay for the work: no moment is paid for twice, whichever process
 * had work then. Where the mark passes over time before this process had any work, another process
 * had work, which it has yet to settle.
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

/* ---- waiting --------------------------------------------------------------------------------- */

uint32_t budget_wake(struct regions *regions, int card) {
    return load_acquire(&live_of(regions, card)->wake);
}

void budget_wait(struct regions *regions, int card, uint32_t wake, uint64_t now, uint64_t until) {
    uint64_t ns = until > now ? smaller(until - now, WAIT_MOST) : 0;
    ns = larger(ns, WAIT_LEAST);
    const struct timespec span = {0, (long)ns};
    store_relaxed(&shared(regions, card)->wanted_at, now + ns); /* waiting counts as wanting time */
    SYS(SYS_futex, &live_of(regions, card)->wake, FUTEX_WAIT, wake, &span, NULL, 0);
    __atomic_fetch_add(&shared(regions, card)->waited_ns, clock_now() - now, __ATOMIC_RELAXED);
}

/* A longest piece is replaced by a shorter one when none as long has come for LONGEST_FADES. */
void budget_want(struct regions *regions, int card, uint64_t now, uint64_t longest) {
    struct mizar_compute *compute = shared(regions, card);
    uint64_t known = load_relaxed(&compute->longest_ns);
    store_relaxed(&compute->wanted_at, now);
    /* Another process may have come after `now` was read. */
    uint64_t age = now - load_relaxed(&compute->longest_at) + LONGEST_FADES;
    if (longest < known - known / 8 && age < 2 * LONGEST_FADES) return;
    store_relaxed(&compute->longest_ns, longest);
    store_relaxed(&compute->longest_at, now);
}
