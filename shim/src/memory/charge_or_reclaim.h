/* Charging bytes where the limit has no room for them at first: unused memory is given back, or waited for. */
#ifndef MIZAR_CHARGE_OR_RECLAIM_H
#define MIZAR_CHARGE_OR_RECLAIM_H

#include <stdbool.h>

#include "region/regions.h"

/* After what nobody can use any more was given back (cached_memory.h). False: that was not enough. */
bool charge_or_reclaim(struct regions *regions, int card, uint64_t bytes);

/*
 * And after the agent has looked, if that may help, and who has borrowed the card is gone. Nobody waits who has a
 * use begun (first_use.h): no look would count.
 */
bool charge_or_wait(struct regions *regions, int card, uint64_t bytes);

#endif
