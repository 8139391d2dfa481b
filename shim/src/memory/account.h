/*
 * Reserve, then allocate, then settle: memory is counted before the driver is asked for it, and
 * given back only after the driver has freed it. Every function expects an attached process.
 */
#ifndef MIZAR_ACCOUNT_H
#define MIZAR_ACCOUNT_H

#include <stdbool.h>

#include "region/regions.h"

/* What the driver takes for `bytes` by themselves: pages of 2 MiB; less only for what shares one. */
uint64_t account_size(uint64_t bytes);

/* False: the card's limit would be passed, also after the dead were settled. */
bool account_reserve(struct regions *regions, int card, uint64_t bytes);

/* Counts what is taken already and cannot be undone, whatever the limit. */
void account_force(struct regions *regions, int card, uint64_t bytes);

void account_release(struct regions *regions, int card, uint64_t bytes);

/*
 * So many more bytes (or less) of what this process is charged may not be on the card: said before they are
 * charged, and taken back afterwards. Code that comes does not show beside them: the node agent allows for it.
 */
void account_absent(struct regions *regions, int card, int64_t more);

/* Bytes that the whole container holds on the card. */
uint64_t account_used(struct regions *regions, int card);

#endif
