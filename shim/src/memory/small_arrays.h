/*
 * Small CUDA arrays share pages of 2 MiB, with each other and with other small allocations, and
 * nobody tells which lie together: one that lives keeps a page however much died beside it. So they
 * count together: for twice the bytes that were taken since there was none of them, but never for
 * more than a page each.
 */
#ifndef MIZAR_SMALL_ARRAYS_H
#define MIZAR_SMALL_ARRAYS_H

#include <stdbool.h>

#include "region/regions.h"

/* One more of that many bytes, less than SMALL_BYTES. False: not allowed. */
bool small_arrays_add(struct regions *regions, int card, uint64_t bytes);

/* One less. */
void small_arrays_remove(struct regions *regions, int card);

/*
 * A page has lost the last of its allocations that have addresses, but an array may lie there. True:
 * the page's charge is theirs from now on.
 */
bool small_arrays_inherit_page(struct regions *regions, int card);

#endif
