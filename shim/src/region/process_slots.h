/* Process slots of the usage region: each process of the container claims one when it first uses CUDA. */
#ifndef MIZAR_PROCESS_SLOTS_H
#define MIZAR_PROCESS_SLOTS_H

#include <stdbool.h>

#include "region/regions.h"

/* Makes sure that this process has a slot. False: none is free, or the region cannot be locked. */
bool process_slots_attach(struct regions *regions);

/* The process has a second driver, which nobody limits: the node agent takes it for one without a shim. */
void process_slots_tell_past(void);

#endif
