/*
 * Decides when a container may start work, and what its work costs, by pure arithmetic on one word.
 *
 * `paid` is the moment up to which the container's share has been spent. Work of g ns of GPU time
 * moves it by g / share. Work may start once that moment has come: a container that used more than
 * its share waits until time has caught up, without exception, and one that used less has savings,
 * up to a ceiling. This is the token bucket in the form that ATM traffic shaping calls the generic
 * cell rate algorithm: its state is one word, and no timer refills it.
 *
 * A window (mizar_regions.h) determines at which moments the container has the card to itself. Then
 * savings last from one window to the next, and work must be done by the end of a window. Pieces
 * that are long compared to the window may exceed it if the share that was earned by its end pays
 * for them.
 *
 * All times are ns of CLOCK_MONOTONIC, shares are basis points.
 */
#ifndef MIZAR_TOKEN_BUCKET_H
#define MIZAR_TOKEN_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

/* The terms on which a container may use a card at present. */
struct terms {
    uint64_t rate;    /* its share, 1 .. MIZAR_SHARE_FULL; 0: paused */
    uint64_t window;  /* as in the limits */
    uint64_t since;   /* when the container got its first window; before, it had none */
    uint64_t longest; /* the longest recent piece of work */
};

/* Whether the container may use the whole card at any time. */
static inline bool terms_free(const struct terms *terms) {
    return terms->rate >= 10000 && !terms->window;
}

/* A request to start a piece of work. */
struct ask {
    uint64_t now;
    uint64_t paid;   /* the container's word */
    uint64_t cost;   /* ns that the piece takes at most, as far as known */
    uint64_t likely; /* ns that it probably takes */
    uint64_t queue;  /* ns of work that is on the card already */
    int64_t over;    /* sum of the ns by which work recently exceeded the ends of its windows */
    uint64_t held;   /* ns of other grants of the thread, which are refunded if it has to wait */
    bool unsure;     /* `likely` was measured too seldom: the piece counts as fitting any window */
};

/* Whether the piece may start. If not, *again is when to ask again. */
bool bucket_admits(const struct terms *terms, const struct ask *ask, uint64_t *again);

/* The end of the window that began last or is about to begin; 0: the terms have no window. */
uint64_t bucket_window_end(const struct terms *terms, uint64_t now);

/* How many ns, at most `quantum`, may be granted in addition to the piece. */
uint64_t bucket_extra(const struct terms *terms, const struct ask *ask, uint64_t quantum);

/*
 * The ns of [from, to], during which the card had work of the container, that count as the
 * container's own. After its window, once the next container has begun, the two share the card, so
 * half of the time counts. Work that began before the container had a window shares the card with
 * all containers that have one now, so the window's part of the period counts.
 */
uint64_t bucket_own_part(const struct terms *terms, uint64_t from, uint64_t to);

/* Which containers used the card during some time, if all keep to their windows. */
enum bucket_whose {
    BUCKET_OWN,       /* this container alone */
    BUCKET_CONTESTED, /* its window had just begun: a neighbour may not have been done yet */
    BUCKET_NEIGHBOURS /* also, or only, other containers */
};

/* ns after the beginning of a window during which neighbours' work may still be on the card. */
uint64_t bucket_contest(const struct terms *terms);

/* Which containers used the card from `from` to `to`. */
enum bucket_whose bucket_whose(const struct terms *terms, uint64_t from, uint64_t to);

/* The part of `ns` that the window is of its period; all of it without a window. */
uint64_t bucket_window_part(const struct terms *terms, uint64_t ns);

/* The word after `ns` more of GPU time were spent; savings beyond the ceiling expire. */
uint64_t bucket_spend(const struct terms *terms, uint64_t paid, uint64_t now, uint64_t ns);

/*
 * The word after work took `more` ns of GPU time in addition to what was spent; negative for less.
 */
uint64_t bucket_correct(const struct terms *terms, uint64_t paid, int64_t more);

#endif
