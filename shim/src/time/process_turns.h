/*
 * Turns among the processes of a container: while one has work on the card, the others wait some
 * milliseconds, so that they do not take the card from each other every millisecond: each such
 * change costs the container, and neither could be measured well.
 */
#ifndef MIZAR_PROCESS_TURNS_H
#define MIZAR_PROCESS_TURNS_H

#include "region/regions.h"
#include "time/token_bucket.h"

/*
 * Whether this process may start work now; then it is its turn. If not, *again is when to ask
 * again. ask->paid must be up to date.
 */
bool turns_take(struct regions *regions, int card, const struct ask *ask, uint64_t *again);

/* This process wants its turn, about then, unless it has it. */
void turns_want(struct regions *regions, int card, uint64_t at);

#endif
