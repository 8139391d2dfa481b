/*
 * Reserve, then allocate, then settle: memory is counted before the driver is asked for it, and
 * given back only after the driver has freed it. Every function expects an attached process.
 */
#ifndef MIZAR_ACCOUNT_H
#define MIZAR_ACCOUNT_H

#include <stdbool.h>

#include "memory/allocs.h"
#include "memory/pages.h"
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

/*
 * A small allocation is there, for which one page was reserved: gives that back unless it is the
 * first in its page. False: it reaches into a second page which is not allowed; nothing is charged.
 */
bool account_enter_pages(struct regions *regions, uint64_t pointer, const struct alloc *alloc);

/* Not one that the program maps memory into. */
static inline bool account_is_array(const struct alloc *alloc) {
    return (alloc->kind == ALLOC_ARRAY || alloc->kind == ALLOC_MIPMAP) && alloc->bytes;
}

/* What code takes is measured, among what others do. */
static inline bool account_is_estimate(const struct alloc *alloc) {
    return alloc->kind == ALLOC_MODULE || alloc->kind == ALLOC_LIBRARY;
}

/* Whether it shares pages with others like it, and has no address: shares.h counts it. */
static inline bool account_is_share(const struct alloc *alloc) {
    return account_is_array(alloc) && alloc->bytes < SMALL_BYTES;
}

/* What was allocated at that key is gone: gives its charge back, of whatever kind it is. */
void account_leave(struct regions *regions, uint64_t pointer, const struct alloc *alloc);

/* Bytes that the whole container holds on the card. */
uint64_t account_used(struct regions *regions, int card);

#endif
