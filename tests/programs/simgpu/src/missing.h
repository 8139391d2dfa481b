/* The fallback of entry points that the real libraries have and that are not simulated. */
#ifndef SIM_MISSING_H
#define SIM_MISSING_H

/* Returns `error`. With SIMGPU_TRACE set, prints the name on standard error. */
int missing(const char *name, int error);

#endif
