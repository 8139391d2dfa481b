/*
 * Small allocations share pages of 2 MiB. The driver takes and frees whole pages, so each page is
 * charged once while any small allocation lies in it. The page follows from the allocation's
 * address.
 */
#ifndef MIZAR_PAGES_H
#define MIZAR_PAGES_H

#include <stdbool.h>

#include "region/process_state.h"

#define PAGE_BITS 21
#define PAGE_BYTES (UINT64_C(1) << PAGE_BITS)
#define SMALL_BYTES (UINT64_C(1) << 20) /* allocations of up to this size share pages */

/* `bytes` rounded up to whole pages. */
static inline uint64_t pages_whole(uint64_t bytes) {
    return (bytes + PAGE_BYTES - 1) & -PAGE_BYTES;
}

/* Counts one more allocation in a page. Returns false if the page is not charged yet. */
bool pages_join(struct process *process, uint64_t page);

/* Counts the first allocation in a page that was just charged. */
void pages_enter(struct process *process, uint64_t page);

/* Counts one allocation less. Returns whether the page's charge has to be given back. */
bool pages_leave(struct process *process, uint64_t page);

#endif
