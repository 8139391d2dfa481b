/* This process's work on one card: the axis of timeline.h, and moments on it that others wait for.
 * The caller holds engine_lock for all of these. */
#ifndef SIM_LANE_H
#define SIM_LANE_H

#include <pthread.h>

#include "driver.h"
#include "timeline.h"

extern pthread_mutex_t engine_lock;

/* A moment that something waits for: unknown yet, an amount of work on a lane, or a time. */
enum mark_state { MARK_UNKNOWN, MARK_WORK, MARK_TIME };

struct mark {
    unsigned users;
    enum mark_state state;
    uint64_t at;
    struct lane *lane;
    struct mark *before, *after; /* among its lane's marks that are not reached, by amount */
};

struct lane {
    unsigned card, sms;
    uint64_t seen_runs;
    uint64_t work, wall; /* so much was done at that time, when last looked at */
    uint64_t *sm_free;   /* when each SM is free, as an amount of work; ascending */
    struct mark *first, *last;
};

struct lane *lane_of(unsigned card);
/* Has the lane done `work` by now? */
bool lane_reached(struct lane *lane, uint64_t work);
/* Put `ns` of work on `sms` SMs, not before `after`; returns the amount at which it ends. */
uint64_t lane_place(struct lane *lane, uint64_t after, unsigned sms, uint64_t ns);
/* The moment for which a launch has to wait, since as many kernels wait as may; NULL: it need not. */
struct mark *lane_full(struct lane *lane);
/* When the lane will have done `work`, as things stand. */
uint64_t lane_when(struct lane *lane, uint64_t work);

struct mark *mark_new(void);
struct mark *mark_keep(struct mark *mark);
void mark_drop(struct mark *mark);
void mark_set_time(struct mark *mark, uint64_t time);
void mark_set_work(struct mark *mark, struct lane *lane, uint64_t work);
/* Is it in the past? Looks at the card if need be. */
bool mark_reached(struct mark *mark);

#endif
