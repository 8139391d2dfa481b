/* The container's utilization of a card. */
#ifndef MIZAR_CHARGED_UTILIZATION_H
#define MIZAR_CHARGED_UTILIZATION_H

#include "region/regions.h"

/*
 * Percent of the card's time that the container was charged, over the last 1/6 s or more. Only for
 * a card whose time is metered. Does not wait: returns 0 until 1/6 s after the container's first
 * work.
 */
unsigned utilization_charged(struct regions *regions, int card);

/* Updates the figure unless it is recent. To be called when GPU time was charged. */
void utilization_note(struct regions *regions, int card, uint64_t now);

#endif
