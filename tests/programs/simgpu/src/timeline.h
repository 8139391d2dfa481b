/* The card's time line: whose work it does when.
 *
 * A process's work on a card is measured on an axis of its own: `asked` is how much it has given
 * to the card so far, `work` how much of that the card has done. The card works for one process at
 * a time, in slices, round robin among those with work left; a change costs time. Nobody runs this
 * as a service: whoever wants to know, under the card's lock, replays what happened since the last
 * time somebody looked. */
#ifndef SIM_TIMELINE_H
#define SIM_TIMELINE_H

#include "clock.h"

/* The caller holds the card's lock for all of these. */

/* Bring the card up to `now` and return its state, valid until the lock is released. */
const struct sim_timeline *sim_advance(struct sim *sim, unsigned card, uint64_t now);
/* When the slot's work will have reached `work`, if nobody asks for more. */
uint64_t sim_predict(struct sim *sim, unsigned card, int slot, uint64_t work);

#endif
