/*
 * Charges that were measured among what others do, or are made in a whole: of modules, contexts and their
 * limits, small arrays. They may be for more than is on the card. As far as they are, code that came does not
 * show as more than the account; so when one is given back, its room is kept until NVML was asked again.
 */
#ifndef MIZAR_ESTIMATES_H
#define MIZAR_ESTIMATES_H

#include "region/regions.h"

/* So many bytes that are charged are of that kind. */
void estimates_add(struct regions *regions, int card, uint64_t bytes);

/* Gives so many of them back. */
void estimates_release(struct regions *regions, int card, uint64_t bytes);

#endif
