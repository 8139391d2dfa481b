/*
 * Turns among the processes of a container: while one has work on the card, the others wait some
 * milliseconds. Otherwise the card would switch between them every millisecond, which costs the
 * container time and makes measurements inexact.
 */
#ifndef MIZAR_PROCESS_TURNS_H
#define MIZAR_PROCESS_TURNS_H

#include "region/regions.h"
#include "time/token_bucket.h"

/*
 * Takes or keeps the turn. Returns whether this process may start work now; if not, *again is when
 * to ask again (ns of CLOCK_MONOTONIC). ask->paid must be up to date.
 */
bool turns_take(struct regions *regions, int card, const struct ask *ask, uint64_t *again);

/*
 * Announces that this process wants the turn at about `at` (ns of CLOCK_MONOTONIC), unless it has
 * it.
 */
void turns_want(struct regions *regions, int card, uint64_t at);

#endif
