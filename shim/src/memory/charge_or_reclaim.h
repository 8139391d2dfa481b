/* Charges bytes that may not fit the limit at first: releases unused memory, or waits for room. */
#ifndef MIZAR_CHARGE_OR_RECLAIM_H
#define MIZAR_CHARGE_OR_RECLAIM_H

#include <stdbool.h>

#include "region/regions.h"

/*
 * Charges the bytes, after releasing unused memory (cached_memory.h) if necessary. Returns false if
 * they do not fit.
 */
bool charge_or_reclaim(struct regions *regions, int card, uint64_t bytes);

/*
 * The same, but if the bytes do not fit, waits until the node agent has asked NVML again, where
 * that may help. After charging, waits until a borrower of the card is gone. Must not be called
 * between first_use_begin() and first_use_end(): the agent's figures do not count then.
 */
bool charge_or_wait(struct regions *regions, int card, uint64_t bytes);

#endif
