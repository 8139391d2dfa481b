/* What makes a card harsh: every figure of it is 0 on an ideal card.
 * See HARSH in machine.py. */
#ifndef SIM_HARSH_H
#define SIM_HARSH_H

#include "state.h"

/* A number from 0 to `most`, the same for the same seed. */
uint64_t harsh_draw(uint64_t seed, uint64_t most);
/* The calling thread is kept for `least` to `least + spread` ns: busy where it is short, as in a
 * driver's call, else asleep. Only where time is real. */
void harsh_spend(const struct sim *sim, uint64_t least, uint64_t spread);
/* How long a kernel of `ns` takes at that time: clocks change, and copies take bandwidth. */
uint64_t harsh_duration(const struct sim_card *card, uint64_t now, uint64_t ns);
/* What an event's clock shows at that time. */
uint64_t harsh_event_time(const struct sim_card *card, uint64_t time);

#endif
