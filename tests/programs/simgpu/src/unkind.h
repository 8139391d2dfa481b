/* What real cards do and simulated ones need not: every figure of it is 0 on a kind card.
 * See HARSH in machine.py. */
#ifndef SIM_UNKIND_H
#define SIM_UNKIND_H

#include "state.h"

/* A number from 0 to `most`, the same for the same seed. */
uint64_t unkind_draw(uint64_t seed, uint64_t most);
/* The calling thread is kept for `least` to `least + spread` ns: busy where it is short, as in a
 * driver's call, else asleep. Only where time is real. */
void unkind_spend(const struct sim *sim, uint64_t least, uint64_t spread);
/* How long a kernel of `ns` takes at that time: clocks change, and copies take bandwidth. */
uint64_t unkind_duration(const struct sim_card *card, uint64_t now, uint64_t ns);
/* What an event's clock shows at that time. */
uint64_t unkind_event_time(const struct sim_card *card, uint64_t time);

#endif
