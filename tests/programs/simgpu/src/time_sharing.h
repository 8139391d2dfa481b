/* The time of a card is shared among processes: which one the card works for, and when.
 *
 * A process's work on a card is measured on an axis of its own: `asked` is the amount that it has
 * given to the card so far, `work` the amount that the card has done. The card works for one
 * process at a time, in slices, round robin among those with work left; a context switch costs
 * time. No process runs this as a service: a process that needs the state takes the card's lock and
 * replays the time since the last replay. */
#ifndef SIM_TIME_SHARING_H
#define SIM_TIME_SHARING_H

#include "clock.h"

/* The caller holds the card's lock for all of these. */

/* Advances the card to `now` and returns its state, which is valid until the lock is released. */
const struct sim_timeline *sim_advance(struct sim *sim, unsigned card, uint64_t now);
/* When the slot's work will have reached `work`, if no more work is given to the card. */
uint64_t sim_predict(struct sim *sim, unsigned card, int slot, uint64_t work);

#endif
