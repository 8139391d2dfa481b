/*
 * The ledger: one 128-bit word per card that decides which process may take memory. mizar_regions.h
 * describes its content. Lock-free, and correct if any process dies between any two instructions.
 */
#ifndef MIZAR_MEMORY_LEDGER_H
#define MIZAR_MEMORY_LEDGER_H

#include <stdbool.h>

#include "mizar_regions.h"

#define LEDGER_NO_LIMIT UINT64_MAX

/* The content of a ledger at one instant. */
struct ledger_view {
    uint64_t total;
    uint64_t slot_bytes;
    uint32_t seq;
    uint32_t slot;
};

/* Reads the card's ledger. */
struct ledger_view ledger_view(struct mizar_usage *usage, unsigned card);

/* Takes `bytes` for the slot. Returns false if the total would exceed `limit` (bytes). */
bool ledger_take(struct mizar_usage *usage, unsigned card, unsigned slot, uint64_t bytes,
               uint64_t limit);

/* Gives `bytes` of the slot back, at most what it holds. */
void ledger_give(struct mizar_usage *usage, unsigned card, unsigned slot, uint64_t bytes);

/* Bytes that the slot holds on the card. */
uint64_t ledger_slot_bytes(struct mizar_usage *usage, unsigned card, unsigned slot);

#endif
