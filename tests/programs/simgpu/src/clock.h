/* Simulated time, in ns: the machine's clock, or one that tests or waiting threads advance. */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include "state.h"

#define SIM_NEVER UINT64_MAX

uint64_t sim_now(const struct sim *sim);
/* Waits until `when`, or shorter: the caller must check again. A stepped clock is set to `when` at
 * once. With SIM_NEVER, waits a moment for other threads. */
void sim_wait_until(struct sim *sim, uint64_t when);
/* Advances a clock that is not real, for tests. */
void sim_tick(struct sim *sim, uint64_t ns);

#endif
