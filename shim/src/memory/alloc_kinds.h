/* What allocations of each kind are charged, and how that is given back. */
#ifndef MIZAR_ALLOC_KINDS_H
#define MIZAR_ALLOC_KINDS_H

#include <stdbool.h>

#include "memory/alloc_table.h"
#include "memory/pages.h"
#include "region/regions.h"

/*
 * A small allocation is there, for which one page was reserved: gives that back unless it is the
 * first in its page. False: it reaches into a second page which is not allowed; nothing is charged.
 */
bool alloc_kind_enter_pages(struct regions *regions, uint64_t pointer, const struct alloc *alloc);

/* Not one that the program maps memory into. */
static inline bool alloc_kind_is_array(const struct alloc *alloc) {
    return (alloc->kind == ALLOC_ARRAY || alloc->kind == ALLOC_MIPMAP) && alloc->bytes;
}

/* What code takes is measured, among what others do. */
static inline bool alloc_kind_is_estimate(const struct alloc *alloc) {
    return alloc->kind == ALLOC_MODULE || alloc->kind == ALLOC_LIBRARY;
}

/* Whether it shares pages with others like it, and has no address: small_arrays.h counts it. */
static inline bool alloc_kind_is_small_array(const struct alloc *alloc) {
    return alloc_kind_is_array(alloc) && alloc->bytes < SMALL_BYTES;
}

/* What was allocated at that key is gone: gives its charge back, of whatever kind it is. */
void alloc_kind_release(struct regions *regions, uint64_t pointer, const struct alloc *alloc);

#endif
