/* How allocations of each kind are charged, and how that charge is given back. */
#ifndef MIZAR_ALLOC_KINDS_H
#define MIZAR_ALLOC_KINDS_H

#include <stdbool.h>

#include "memory/alloc_table.h"
#include "memory/pages.h"
#include "region/regions.h"

/*
 * Charges the pages of a small allocation, for which one page was reserved. Gives that page back if
 * all of the allocation's pages are charged already. Returns false, with nothing charged, if the
 * allocation reaches into a second page that the limit does not allow.
 */
bool alloc_kind_enter_pages(struct regions *regions, uint64_t pointer, const struct alloc *alloc);

/* Whether it is an array with memory of its own, not one into which the program maps memory. */
static inline bool alloc_kind_is_array(const struct alloc *alloc) {
    return (alloc->kind == ALLOC_ARRAY || alloc->kind == ALLOC_MIPMAP) && alloc->bytes;
}

/*
 * Whether the charge is an estimate: the memory of code is measured while neighbours may change
 * theirs.
 */
static inline bool alloc_kind_is_estimate(const struct alloc *alloc) {
    return alloc->kind == ALLOC_MODULE || alloc->kind == ALLOC_LIBRARY;
}

/* Whether it is an array that shares pages with other allocations: small_arrays.h counts it. */
static inline bool alloc_kind_is_small_array(const struct alloc *alloc) {
    return alloc_kind_is_array(alloc) && alloc->bytes < SMALL_BYTES;
}

/* Gives back the charge of an allocation that is gone, of any kind. `pointer`: its key. */
void alloc_kind_release(struct regions *regions, uint64_t pointer, const struct alloc *alloc);

#endif
