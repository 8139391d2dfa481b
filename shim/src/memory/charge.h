/*
 * Charging bytes of a card to the container, where they fit its limit. The ledger (memory_ledger.h) compares and
 * takes in one step. Memory is charged before the driver is asked for it, and released only after the driver
 * has freed it. Every function expects an attached process.
 */
#ifndef MIZAR_CHARGE_H
#define MIZAR_CHARGE_H

#include <stdbool.h>

#include "region/regions.h"

/* What the driver takes for `bytes` by themselves: pages of 2 MiB; less only for what shares one. */
uint64_t charge_size(uint64_t bytes);

/* False: the card's limit would be passed, also after the dead were settled. */
bool charge_within_limit(struct regions *regions, int card, uint64_t bytes);

/* Counts what is taken already and cannot be undone, whatever the limit. */
void charge_force(struct regions *regions, int card, uint64_t bytes);

void charge_release(struct regions *regions, int card, uint64_t bytes);

/*
 * So many more bytes (or less) of what this process is charged may not be on the card: said before they are
 * charged, and taken back afterwards. Code that comes does not show beside them: the node agent allows for it.
 */
void charge_absent(struct regions *regions, int card, int64_t more);

/* Bytes that the whole container holds on the card. */
uint64_t charge_total(struct regions *regions, int card);

#endif
