/* Process slots of the usage region: claiming one, and settling what the dead left. */
#ifndef MIZAR_SLOTS_H
#define MIZAR_SLOTS_H

#include <stdbool.h>

#include "region/regions.h"

/* Makes sure that this process has a slot. False: none is free, or the region cannot be locked. */
bool slots_attach(struct regions *regions);

/* The process has a second driver, which nobody limits: the node agent takes it for one without a shim. */
void slots_tell_past(void);

/* Slots from this one on were never used. */
unsigned slots_used(struct mizar_usage *usage);

/* Gives back the bytes of every dead process of the container. False: one is not quite gone. */
bool slots_settle(struct regions *regions);

/* The same, but at most every 100 ms: for answers and turns that should not count the dead. */
void slots_settle_sometimes(struct regions *regions);

#endif
