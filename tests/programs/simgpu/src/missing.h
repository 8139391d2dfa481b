/* What entries do that the real libraries have and the simulated ones have not. */
#ifndef SIM_MISSING_H
#define SIM_MISSING_H

/* Returns `error`; with SIMGPU_TRACE set, says on standard error who was asked for. */
int missing(const char *name, int error);

#endif
