/*
 * Charges that are estimates: for modules, contexts and their limits, and small arrays. They may
 * exceed what is on the card, and code that was loaded by first use is hidden by that excess: it
 * does not show as memory beyond the account. So when an estimate is given back, as much room stays
 * reserved for code until the agent has asked NVML again.
 */
#ifndef MIZAR_ESTIMATES_H
#define MIZAR_ESTIMATES_H

#include "region/regions.h"

/* Records that `bytes` of the present charge are only estimated. */
void estimates_add(struct regions *regions, int card, uint64_t bytes);

/* Gives `bytes` of estimates back. */
void estimates_release(struct regions *regions, int card, uint64_t bytes);

#endif
