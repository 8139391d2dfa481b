/* The engine: hands queued work of streams to the card and the copy engines. */
#ifndef SIM_ENGINE_H
#define SIM_ENGINE_H

#include "stream.h"

extern CUstream engine_streams;

/* Tries to hand on one piece of work at the end of its stream. Returns true on success; otherwise
 * sets *wake to when to try again (SIM_NEVER: after something else has moved). The caller holds
 * engine_lock. */
bool engine_run(CUstream stream, const struct work *work, uint64_t asked_at, bool may_call,
                uint64_t *wake);

#endif
