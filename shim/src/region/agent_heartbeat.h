/*
 * Whether the node agent is alive, by the heartbeat in the limits. What follows if it is not:
 * time/present_share.h (the container has its own share), memory/lazy_code.h (no process waits for
 * the agent's next look at its memory).
 */
#ifndef MIZAR_AGENT_HEARTBEAT_H
#define MIZAR_AGENT_HEARTBEAT_H

#include "region/regions.h"

/* Whether the node agent has done a round within the last second. `now`: ns of CLOCK_MONOTONIC. */
bool agent_lives(struct regions *regions, int card, uint64_t now);

#endif
