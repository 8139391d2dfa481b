/* How busy the container keeps a card. */
#ifndef MIZAR_UTILIZATION_H
#define MIZAR_UTILIZATION_H

#include "region/regions.h"

/*
 * Per cent of the card's time of late, over 1/6 s or more, from what the container was charged. Only
 * where the card's time is metered. May wait for those 1/6 s when nobody asked for seconds.
 */
unsigned utilization_charged(struct regions *regions, int card);

#endif
