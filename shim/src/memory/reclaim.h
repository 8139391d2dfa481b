/*
 * Memory that nobody can use any more, but is charged until somebody looks: what pools keep, what closed
 * descriptors held, what streams have come to free. Those who know of some are in the table.
 */
#ifndef MIZAR_RECLAIM_H
#define MIZAR_RECLAIM_H

#include <stdbool.h>

#include "region/regions.h"

/* Makes the driver give some back; whether anything was. */
typedef bool reclaimer(struct regions *regions, int card);

extern reclaimer *const reclaimers[]; /* in their order, up to NULL: cuda/registered.c */

/* Asks all of them; whether anything was given back. */
bool reclaim_unused(struct regions *regions, int card);

#endif
