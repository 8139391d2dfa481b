/*
 * Small CUDA arrays share pages of 2 MiB, and nobody tells which lie together: one that lives keeps
 * a page however many died beside it. So they count by size, each size with the most that ever
 * lived at once, until none of that size is left.
 */
#ifndef MIZAR_SHARES_H
#define MIZAR_SHARES_H

#include <stdbool.h>

#include "regions.h"

/* One more of that many bytes, at most SMALL_BYTES. False: not allowed. */
bool shares_take(struct regions *regions, int card, uint64_t bytes);

void shares_give(struct regions *regions, int card, uint64_t bytes);

#endif
