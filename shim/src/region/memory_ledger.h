/*
 * The ledger: one 128-bit word per card that decides who may have memory. See mizar_regions.h for
 * what it says. Lock-free, and correct when any participant dies between any two instructions.
 */
#ifndef MIZAR_MEMORY_LEDGER_H
#define MIZAR_MEMORY_LEDGER_H

#include <stdbool.h>

#include "mizar_regions.h"

#define LEDGER_NO_LIMIT UINT64_MAX

/* One instant of a ledger, unpacked. */
struct ledger_view {
    uint64_t total;
    uint64_t slot_bytes;
    uint32_t seq;
    uint32_t slot;
};

struct ledger_view ledger_view(struct mizar_usage *usage, unsigned card);

/* Takes `bytes` for the slot, unless the total would pass `limit`. */
bool ledger_take(struct mizar_usage *usage, unsigned card, unsigned slot, uint64_t bytes,
               uint64_t limit);

/* Gives `bytes` of the slot back; never more than it holds. */
void ledger_give(struct mizar_usage *usage, unsigned card, unsigned slot, uint64_t bytes);

/* Bytes that the slot holds on the card. */
uint64_t ledger_slot_bytes(struct mizar_usage *usage, unsigned card, unsigned slot);

#endif
