/*
 * Memory that nobody can use any more, but is charged until somebody looks: what pools keep, what closed
 * descriptors held, what streams have come to free. The parts that know of some are in the table.
 */
#ifndef MIZAR_CACHED_MEMORY_H
#define MIZAR_CACHED_MEMORY_H

#include <stdbool.h>

#include "region/regions.h"

/* Makes the driver give some back; whether anything was. */
typedef bool cached_memory_releaser(struct regions *regions, int card);

/* In their order, up to NULL: cuda/listeners.c. */
extern cached_memory_releaser *const cached_memory_releasers[];

/* Asks all of them; whether anything was given back. */
bool cached_memory_release(struct regions *regions, int card);

#endif
