/* Room for what has no charge of its own. */
#ifndef MIZAR_RESERVE_H
#define MIZAR_RESERVE_H

#include <stdbool.h>

#include "region/regions.h"

/*
 * Reserves bytes of a card for what has no charge of its own; waits until the agent has looked if that may
 * help, and for who has borrowed the card. Nobody waits who has a use begun (first_use.h): no look would count.
 */
bool reserve_patiently(struct regions *regions, int card, uint64_t bytes);
bool reserve_at_once(struct regions *regions, int card, uint64_t bytes);

#endif
