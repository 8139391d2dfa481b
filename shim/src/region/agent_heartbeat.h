/* The node agent, as its heartbeat in the limits shows it. */
#ifndef MIZAR_AGENT_HEARTBEAT_H
#define MIZAR_AGENT_HEARTBEAT_H

#include "region/regions.h"

/* Whether the node agent has done a round lately; `now` in ns of CLOCK_MONOTONIC. */
bool agent_lives(struct regions *regions, int card, uint64_t now);

#endif
