#ifndef SIM_ENGINE_H
#define SIM_ENGINE_H

#include "stream.h"

extern CUstream engine_streams;

/* Try one piece of work at the end of its stream: true when it has been handed on, else *wake says
 * when to try again (SIM_NEVER: when something else has moved). engine_lock held. */
bool engine_run(CUstream stream, const struct work *work, uint64_t asked_at, bool may_call,
                uint64_t *wake);

#endif
