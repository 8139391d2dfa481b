/*
 * When a container may start work, and what its work costs: pure arithmetic over one word.
 *
 * `paid` is the moment up to which the container's share has been spent. Work of g ns of GPU time
 * moves it by g / share. Work may start once that moment has come: a container that used more than its
 * share waits until time has caught up (nothing is forgiven), and one that used less has savings, up to
 * a ceiling. This is the token bucket in the form that ATM traffic shaping calls the generic cell
 * rate algorithm: one word says it all, and no timer refills anything.
 *
 * A window (mizar_regions.h) says at which moments the container has the card to itself. Then
 * savings last from one window to the next, and work has to be done by the end of a window: except
 * for pieces that are long in comparison, which may reach over it if the share that was earned up to
 * there pays for them.
 *
 * All times are ns of CLOCK_MONOTONIC, shares are basis points.
 */
#ifndef MIZAR_TOKEN_BUCKET_H
#define MIZAR_TOKEN_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

/* The terms on which a container has a card just now. */
struct terms {
    uint64_t rate;    /* its share, 1 .. MIZAR_SHARE_FULL; 0: paused */
    uint64_t window;  /* as in the limits */
    uint64_t since;   /* the window is new: before that moment there was none */
    uint64_t longest; /* the longest piece of work of late */
};

/* Nothing is limited: the whole card at any time. */
static inline bool terms_free(const struct terms *terms) {
    return terms->rate >= 10000 && !terms->window;
}

struct ask {
    uint64_t now;
    uint64_t paid;  /* the container's word */
    uint64_t cost;   /* of the piece of work, at most, as far as known */
    uint64_t likely; /* what it will probably be */
    uint64_t queue; /* work that this process has on the card already, in ns */
    int64_t over;   /* ns by which work reached over the ends of windows of late, in all */
    uint64_t held;  /* ns that were spent for it already and not used: they go back if it has to wait */
    bool unsure;    /* of what is likely: it was measured too seldom to be kept from any window */
};

/* May the piece start? If not, *again is when to ask again. */
bool bucket_admits(const struct terms *terms, const struct ask *ask, uint64_t *again);

/* When the window ends that began last (or is about to begin); 0: there is none. */
uint64_t bucket_window_end(const struct terms *terms, uint64_t now);

/* How much more may be granted with the piece, at most `quantum` ns. */
uint64_t bucket_extra(const struct terms *terms, const struct ask *ask, uint64_t quantum);

/*
 * How much of [from, to], in which the card had the container's work, is the container's own. Beyond
 * its window, once the next container has begun, the two share the card: half of it. What began
 * before it had a window shares the card with all who have one now, as what they began does.
 */
uint64_t bucket_own_part(const struct terms *terms, uint64_t from, uint64_t to);

/* Which containers had the card from the one moment to the other, if all keep to their windows. */
enum bucket_whose {
    BUCKET_OWN,       /* this container alone */
    BUCKET_CONTESTED, /* its window had just begun: the neighbour may not have been done */
    BUCKET_NEIGHBOURS /* not it alone */
};
/* ns from the begin of a window, for which what neighbours have left may be on the card. */
uint64_t bucket_contest(const struct terms *terms);

enum bucket_whose bucket_whose(const struct terms *terms, uint64_t from, uint64_t to);

/* As much of it as the window is of its period. */
uint64_t bucket_window_part(const struct terms *terms, uint64_t ns);

/* The word after `ns` more of GPU time; savings beyond the ceiling are gone. */
uint64_t bucket_spend(const struct terms *terms, uint64_t paid, uint64_t now, uint64_t ns);

/* The word after it turned out that the work took `more` ns than was spent (or less: negative). */
uint64_t bucket_correct(const struct terms *terms, uint64_t paid, int64_t more);

#endif
