#include "time/token_bucket.h"

#include "base/numbers.h"
#include "mizar_regions.h"

#define MS UINT64_C(1000000)
#define US UINT64_C(1000)

/* Without a window, a container that was idle may use this many ns at once. */
#define SAVINGS (15 * MS)
/*
 * Savings before a piece of work are at most this (ns), or the longest pieces would start too late.
 */
#define AHEAD_MOST (25 * MS)
/* Work may start this early (ns), since sleeps are not more precise. */
#define LEAD (70 * US)
/* With this much work (ns) on the card, no more is added where time is limited. */
#define QUEUE (2 * MS)
/*
 * With this much work (ns) on the card, no more is added where time is not limited: short enough
 * that a process soon notices a new limit.
 */
#define QUEUE_FREE (32 * MS)
/*
 * 1/SLACK_PART of a piece of work may exceed the end of the window. About as much
 * time is left unused in windows where the next piece does not fit, so neighbours lose nothing. The
 * part shrinks after windows that were exceeded by more, and grows after others.
 */
#define SLACK_PART 2
/* A piece of work of more ns than this is long, in a window of any length. */
#define LONG (8 * MS)
/* In a short window, a piece of work is long if it takes more than 1/LONG_PART of the window. */
#define LONG_PART 4
/* ns that the next container takes to notice that its window has begun. */
#define HANDOVER (150 * US)
/*
 * ns after the beginning of a window during which work that a neighbour left may still be running.
 */
#define CONTESTED (3 * MS)
/* ns: 13 days. Larger values are errors; sums of smaller ones do not overflow. */
#define NS_MAX (UINT64_C(1) << 50)

struct window {
    uint64_t length, start, period;
};

static struct window decode(uint64_t word) {
    const uint64_t mask = (UINT64_C(1) << MIZAR_WINDOW_BITS) - 1;
    return (struct window){
        .length = (word & mask) * US,
        .start = (word >> MIZAR_WINDOW_BITS & mask) * US,
        .period = (word >> 2 * MIZAR_WINDOW_BITS & mask) * US,
    };
}

/* Whether the terms have a valid window. */
static bool has_window(const struct terms *terms, struct window *window) {
    if (terms->window >> 60 != MIZAR_WINDOW_VALID >> 60) return false;
    *window = decode(terms->window);
    return window->period && window->length && window->length < window->period;
}

/* The time (ns) in which the container's share amounts to `ns` of GPU time. */
static uint64_t stretched(const struct terms *terms, uint64_t ns) {
    return smaller(ns, NS_MAX) * MIZAR_SHARE_FULL / larger(terms->rate, 1);
}

/*
 * Savings (ns) before a piece of work starts: half of what it uses beyond the share while it runs.
 */
static uint64_t ahead_of(const struct terms *terms, uint64_t ns) {
    ns = smaller(ns, NS_MAX);
    return smaller((stretched(terms, ns) - ns) / 2, AHEAD_MOST);
}

/* The most savings (ns) that a container may have. */
static uint64_t ceiling(const struct terms *terms) {
    struct window window;
    if (!has_window(terms, &window)) return SAVINGS + ahead_of(terms, terms->longest);
    return window.period + window.period / 2 + stretched(terms, terms->longest);
}

/* The container's `paid`, with savings limited to the ceiling. */
static uint64_t current(const struct terms *terms, uint64_t paid, uint64_t now) {
    uint64_t most = ceiling(terms);
    return larger(paid, now > most ? now - most : 0);
}

static bool queue_is_full(const struct terms *terms, const struct ask *ask, uint64_t *again) {
    uint64_t most = terms_free(terms) ? QUEUE_FREE : QUEUE;
    if (ask->queue <= most) return false;
    *again = ask->now + ask->queue - most;
    return true;
}

struct moment {
    uint64_t began, ends; /* beginning and end of the window that began last */
};

static struct moment moment_of(const struct window *window, uint64_t now) {
    uint64_t since = (now + window->period - window->start % window->period) % window->period;
    return (struct moment){now - since, now - since + window->length};
}

/*
 * Whether a piece may exceed the end of the window because it is long: it would otherwise leave
 * much of the window unused, or never start if it is longer than the window. The share that the
 * container has earned by the end of the window must pay for it.
 */
static bool may_reach_over(const struct terms *terms, const struct ask *ask, uint64_t begins,
                           const struct moment *moment) {
    uint64_t paid = current(terms, ask->paid, ask->now) + stretched(terms, ask->likely);
    bool is_long = ask->likely > smaller((moment->ends - moment->began) / LONG_PART, LONG);
    return is_long && begins < moment->ends && paid <= moment->ends;
}

static uint64_t slack_of(const struct ask *ask, uint64_t likely) {
    int64_t slack = (int64_t)(likely / SLACK_PART) - ask->over;
    return slack > 0 ? smaller((uint64_t)slack, likely) : 0;
}

static bool fits_window(const struct terms *terms, const struct ask *ask, uint64_t *again) {
    struct window window;
    if (!has_window(terms, &window)) return true;
    struct moment moment = moment_of(&window, ask->now + LEAD);
    uint64_t likely = ask->unsure ? smaller(ask->likely, window.length) : ask->likely;
    uint64_t begins = ask->now + ask->queue, ends = begins + likely;
    if (ends <= moment.ends + slack_of(ask, likely)) return true;
    if (may_reach_over(terms, ask, begins, &moment)) return true;
    /* Work on the card may be done sooner than expected. */
    uint64_t half = ask->now + ask->queue / 2;
    bool may_fit = half > ask->now + LEAD && half + ask->likely < moment.ends;
    *again = may_fit ? half : moment.began + window.period - LEAD;
    return false;
}

/*
 * When the piece may start. Of what it uses beyond the share while it runs, one half is saved up
 * before it and the other paid back after it, so that at any moment the container's total is as
 * near to its share as possible. With a window, nothing is saved up, as only the window decides.
 */
static uint64_t due(const struct terms *terms, const struct ask *ask) {
    struct window window;
    uint64_t paid = ask->paid - smaller(stretched(terms, ask->held), ask->paid);
    return has_window(terms, &window) ? paid : paid + ahead_of(terms, ask->likely);
}

bool bucket_admits(const struct terms *terms, const struct ask *ask, uint64_t *again) {
    if (queue_is_full(terms, ask, again)) return false;
    if (terms_free(terms)) return true;
    uint64_t due_at = due(terms, ask);
    if (due_at > ask->now + LEAD) {
        *again = due_at;
        return false;
    }
    return fits_window(terms, ask, again);
}

uint64_t bucket_window_end(const struct terms *terms, uint64_t now) {
    struct window window;
    return has_window(terms, &window) ? moment_of(&window, now + LEAD).ends : 0;
}

uint64_t bucket_extra(const struct terms *terms, const struct ask *ask, uint64_t quantum) {
    struct window window;
    if (!has_window(terms, &window)) return quantum;
    struct moment moment = moment_of(&window, ask->now + LEAD);
    uint64_t busy = ask->now + ask->queue + ask->likely;
    return busy < moment.ends ? smaller(quantum, moment.ends - busy) : 0;
}

uint64_t bucket_window_part(const struct terms *terms, uint64_t ns) {
    struct window window;
    if (!has_window(terms, &window)) return ns;
    return ns / window.period * window.length + ns % window.period * window.length / window.period;
}

/* ns of [0, at] that lie in windows, the first of which begins at 0. */
static uint64_t inside_until(const struct window *window, uint64_t at) {
    return at / window->period * window->length + smaller(at % window->period, window->length);
}

static uint64_t own_part(struct window window, uint64_t from, uint64_t to) {
    uint64_t since = (from + window.period - window.start % window.period) % window.period;
    uint64_t until = since + (to - from);
    window.length = smaller(window.length + HANDOVER, window.period);
    uint64_t inside = inside_until(&window, until) - inside_until(&window, since);
    return inside + (to - from - inside) / 2;
}

uint64_t bucket_own_part(const struct terms *terms, uint64_t from, uint64_t to) {
    struct window window;
    if (to <= from) return 0;
    if (!has_window(terms, &window)) return to - from;
    return from < terms->since ? bucket_window_part(terms, to - from) : own_part(window, from, to);
}

/* A neighbour's pieces may be as long as the container's own. */
uint64_t bucket_contest(const struct terms *terms) {
    return larger(CONTESTED, terms->longest);
}

enum bucket_whose bucket_whose(const struct terms *terms, uint64_t from, uint64_t to) {
    struct window window;
    if (!has_window(terms, &window)) return BUCKET_OWN;
    struct moment moment = moment_of(&window, from);
    if (from < terms->since || to > moment.ends) return BUCKET_NEIGHBOURS;
    /* Never the whole window, or nothing could be learned in it. */
    uint64_t contested = smaller(bucket_contest(terms), window.length / 2);
    return from - moment.began < contested ? BUCKET_CONTESTED : BUCKET_OWN;
}

uint64_t bucket_spend(const struct terms *terms, uint64_t paid, uint64_t now, uint64_t ns) {
    return current(terms, paid, now) + stretched(terms, ns);
}

uint64_t bucket_correct(const struct terms *terms, uint64_t paid, int64_t more) {
    if (more >= 0) return paid + stretched(terms, (uint64_t)more);
    uint64_t less = stretched(terms, (uint64_t)-more);
    return paid > less ? paid - less : 0;
}
