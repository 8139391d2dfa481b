/*
 * Charges bytes of a card to the container if they fit its limit. The ledger (memory_ledger.h)
 * compares and takes in one step. Memory is charged before the driver is asked for it, and released
 * only after the driver has freed it. Every function requires an attached process, and ignores
 * CARD_NONE, for which charge_within_limit() returns false.
 */
#ifndef MIZAR_CHARGE_H
#define MIZAR_CHARGE_H

#include <stdbool.h>

#include "region/regions.h"

/*
 * The bytes to charge for an allocation of `bytes`: whole pages of 2 MiB, except for small
 * allocations, which share pages and are rounded to 512 bytes.
 */
uint64_t charge_size(uint64_t bytes);

/*
 * Charges the bytes. Returns false if they would exceed the card's limit even after dead processes
 * were settled.
 */
bool charge_within_limit(struct regions *regions, int card, uint64_t bytes);

/* Charges bytes that are taken already and cannot be freed, regardless of the limit. */
void charge_force(struct regions *regions, int card, uint64_t bytes);

/* Gives the bytes back. */
void charge_release(struct regions *regions, int card, uint64_t bytes);

/*
 * Changes by `more` the bytes that this process is charged and that may not be on the card. To be
 * called before such bytes are charged, and after they were released. The node agent must know of
 * them, since code that is loaded meanwhile would not show as memory beyond the account.
 */
void charge_absent(struct regions *regions, int card, int64_t more);

/* Bytes that the whole container is charged on the card. `card` must not be CARD_NONE. */
uint64_t charge_total(struct regions *regions, int card);

#endif
