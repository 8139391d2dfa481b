/* Simulated time, in ns. */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include "state.h"

#define SIM_NEVER UINT64_MAX

uint64_t sim_now(const struct sim *sim);
/* Return when it is `when`, or sooner: the caller looks again. A stepped clock jumps there;
 * SIM_NEVER waits a moment for others. */
void sim_wait_until(struct sim *sim, uint64_t when);
/* Tests move a clock that is not real. */
void sim_tick(struct sim *sim, uint64_t ns);

#endif
