/* Whether the node agent is alive, by the heartbeat in the limits. */
#ifndef MIZAR_AGENT_HEARTBEAT_H
#define MIZAR_AGENT_HEARTBEAT_H

#include "region/regions.h"

/* Whether the node agent has done a round within the last second. `now`: ns of CLOCK_MONOTONIC. */
bool agent_lives(struct regions *regions, int card, uint64_t now);

#endif
