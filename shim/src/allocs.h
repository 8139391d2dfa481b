/*
 * What each live pointer of this process costs: pointer -> (card, bytes). Lock-free; every
 * operation looks at one short bucket per segment, however many pointers live.
 */
#ifndef MIZAR_ALLOCS_H
#define MIZAR_ALLOCS_H

#include <stdbool.h>

#include "process.h"

struct alloc {
    uint64_t bytes; /* charged; up to MIZAR_BYTES_MAX */
    int card;
    unsigned kind; /* ALLOC_*: who gives it back */
};

enum { ALLOC_PLAIN, ALLOC_KINDS };

/* False when there is no memory for the table. `key` is not 0 and not UINT64_MAX. */
bool allocs_put(struct process *process, uint64_t key, struct alloc alloc);

/* Removes the entry: of two threads that take the same key, one gets it. */
bool allocs_take(struct process *process, uint64_t key, struct alloc *alloc);

/* Looks without removing. */
bool allocs_find(struct process *process, uint64_t key, struct alloc *alloc);

#endif
