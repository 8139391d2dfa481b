/*
 * Small allocations share pages of 2 MiB. The driver takes and frees whole pages, so that is what
 * is charged: a page, once, while any small allocation lies in it. Their addresses tell which.
 */
#ifndef MIZAR_PAGES_H
#define MIZAR_PAGES_H

#include <stdbool.h>

#include "region/process_state.h"

#define PAGE_BITS 21
#define PAGE_BYTES (UINT64_C(1) << PAGE_BITS)
#define SMALL_BYTES (UINT64_C(1) << 20) /* up to this, allocations share pages */

static inline uint64_t pages_whole(uint64_t bytes) {
    return (bytes + PAGE_BYTES - 1) & -PAGE_BYTES;
}

/* One more allocation in a page that is charged already; false when it is not. */
bool pages_join(struct process *process, uint64_t page);

/* The page has just been charged. */
void pages_enter(struct process *process, uint64_t page);

/* One less. True when the charge has to be given back. */
bool pages_leave(struct process *process, uint64_t page);

#endif
