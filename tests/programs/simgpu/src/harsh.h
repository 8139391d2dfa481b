/* Delays and errors of a harsh card. All of its figures are 0 on an ideal card; see HARSH in
 * machine.py. */
#ifndef SIM_HARSH_H
#define SIM_HARSH_H

#include "state.h"

/* A pseudo-random number from 0 to `most`, determined by the seed. */
uint64_t harsh_draw(uint64_t seed, uint64_t most);
/* Delays the calling thread by `least` to `least + spread` ns, if the clock is real: short delays
 * are spent busy, as in a driver's call, long ones asleep. */
void harsh_spend(const struct sim *sim, uint64_t least, uint64_t spread);
/* The duration (ns) of a kernel of `ns` that starts at `now`: clocks change, and copies take
 * bandwidth. */
uint64_t harsh_duration(const struct sim_card *card, uint64_t now, uint64_t ns);
/* Whether the memory of a dead process has been returned by now, which takes return_ns. */
bool harsh_returned(const struct sim *sim, struct sim_process *process);
/* The time that an event shows if the card passed it at `time`. */
uint64_t harsh_event_time(const struct sim_card *card, uint64_t time);

#endif
