/*
 * Memory that is not used any more, but stays charged until it is looked for: memory that pools
 * keep, that closed descriptors held, or that streams have freed. The table has the functions that
 * release it.
 */
#ifndef MIZAR_CACHED_MEMORY_H
#define MIZAR_CACHED_MEMORY_H

#include <stdbool.h>

#include "region/regions.h"

/* Releases such memory of the card. Returns whether there was any. */
typedef bool cached_memory_releaser(struct regions *regions, int card);

/* The functions in the order of their calls, ending with NULL: cuda/listeners.c. */
extern cached_memory_releaser *const cached_memory_releasers[];

/* Calls all of them. Returns whether any memory was released. */
bool cached_memory_release(struct regions *regions, int card);

#endif
