/* How busy the container keeps a card. */
#ifndef MIZAR_UTILIZATION_H
#define MIZAR_UTILIZATION_H

#include "region/regions.h"

/*
 * Per cent of the card's time, over 1/6 s or more until now or just before, from what the container was
 * charged. Only where the card's time is metered. Never waits: until 1/6 s after the container's first work, 0.
 */
unsigned utilization_charged(struct regions *regions, int card);

/* GPU time was just charged: the figure is brought up to date, unless it is of late. */
void utilization_note(struct regions *regions, int card, uint64_t now);

#endif
