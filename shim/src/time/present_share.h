/*
 * The share of a card's time that the container has at present. The limits say its own share; the
 * node agent, while it is alive, lends more, weighs it against the neighbours that want time, or
 * pauses the container. Without the agent, the container has its own share.
 */
#ifndef MIZAR_PRESENT_SHARE_H
#define MIZAR_PRESENT_SHARE_H

#include "region/regions.h"

/*
 * The share in basis points; 0: paused. `mode`: the compute mode of the limits, which is not
 * MIZAR_COMPUTE_NONE. `now`: ns of CLOCK_MONOTONIC.
 */
uint64_t present_share(struct regions *regions, int card, uint32_t mode, uint64_t now);

#endif
