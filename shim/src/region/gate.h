/*
 * The gate: one 128-bit word per card that decides who may have memory. See mizar_regions.h for
 * what it says. Lock-free, and correct when any participant dies between any two instructions.
 */
#ifndef MIZAR_GATE_H
#define MIZAR_GATE_H

#include <stdbool.h>

#include "mizar_regions.h"

#define GATE_NO_LIMIT UINT64_MAX

/* One instant of a gate, unpacked. */
struct gate_view {
    uint64_t total;
    uint64_t slot_bytes;
    uint32_t seq;
    uint32_t slot;
};

struct gate_view gate_view(struct mizar_usage *usage, unsigned card);

/* Takes `bytes` for the slot, unless the total would pass `limit`. */
bool gate_take(struct mizar_usage *usage, unsigned card, unsigned slot, uint64_t bytes,
               uint64_t limit);

/* Gives `bytes` of the slot back; never more than it holds. */
void gate_give(struct mizar_usage *usage, unsigned card, unsigned slot, uint64_t bytes);

/* Bytes that the slot holds on the card. */
uint64_t gate_slot_bytes(struct mizar_usage *usage, unsigned card, unsigned slot);

#endif
