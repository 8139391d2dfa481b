/*
 * Process slots of the usage region: each process of the container claims one when it first uses
 * CUDA, a forked child too, since it finds its state zeroed (process_state.h).
 */
#ifndef MIZAR_PROCESS_SLOTS_H
#define MIZAR_PROCESS_SLOTS_H

#include <stdbool.h>

#include "region/regions.h"

/*
 * Makes sure that this process has a slot. Returns false if none is free, if the region cannot be
 * locked, or if /proc/self/stat cannot be read.
 */
bool process_slots_attach(struct regions *regions);

/*
 * Tells the node agent that the process has a second driver, whose calls are not limited. The agent
 * then treats the process like one without a shim.
 */
void process_slots_tell_past(void);

#endif
