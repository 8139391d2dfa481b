/* Lanes: this process's work on one card, measured on the axis that time_sharing.h describes, and marks
 * on it for which threads wait. The caller of each function holds engine_lock. */
#ifndef SIM_LANE_H
#define SIM_LANE_H

#include <pthread.h>

#include "driver.h"
#include "time_sharing.h"

extern pthread_mutex_t engine_lock;

/* The kinds of moments that marks stand for: not known yet, an amount of work on a lane, a time. */
enum mark_state { MARK_UNKNOWN, MARK_WORK, MARK_TIME };

struct mark {
    unsigned users;
    enum mark_state state;
    uint64_t at;
    struct lane *lane;
    struct mark *before, *after; /* neighbours in the list of the lane's marks that are not
                                    reached, ordered by amount */
};

struct lane {
    unsigned card, sms;
    uint64_t seen_runs;
    uint64_t work, wall; /* work done, and the time, when the card was last looked at */
    uint64_t *sm_free;   /* for each SM, the amount of work at which it is free; ascending */
    struct mark *first, *last;
};

struct lane *lane_of(unsigned card);
/* Whether the lane has done `work` by now. */
bool lane_reached(struct lane *lane, uint64_t work);
/* Places `ns` of work on `sms` SMs, not before the amount `after`. Returns the amount at which it
 * ends. */
uint64_t lane_place(struct lane *lane, uint64_t after, unsigned sms, uint64_t ns);
/* The mark for which a launch has to wait because the card's queue is full; NULL if it need not
 * wait. The caller drops the mark. */
struct mark *lane_full(struct lane *lane);
/* When the lane will have done `work`, if nothing else is added. */
uint64_t lane_when(struct lane *lane, uint64_t work);

struct mark *mark_new(void);
struct mark *mark_keep(struct mark *mark);
void mark_drop(struct mark *mark);
void mark_set_time(struct mark *mark, uint64_t time);
void mark_set_work(struct mark *mark, struct lane *lane, uint64_t work);
/* Whether the mark has been reached. Looks at the card if necessary. */
bool mark_reached(struct mark *mark);

#endif
