/*
 * The table of allocations: for each live object of this process, the card and the bytes that it is
 * charged. Lock-free. Every operation on a key reads one short bucket per segment, however many
 * objects there are.
 */
#ifndef MIZAR_ALLOC_TABLE_H
#define MIZAR_ALLOC_TABLE_H

#include <stdbool.h>

#include "region/process_state.h"

enum alloc_kind {
    ALLOC_POINTER,   /* device memory by its address */
    ALLOC_SMALL,     /* the same, sharing pages with others: the pages are charged */
    ALLOC_POOLED,    /* the same, out of a pool: `owner` is the pool's number */
    ALLOC_ARRAY,     /* CUarray */
    ALLOC_MIPMAP,    /* CUmipmappedArray */
    ALLOC_EXTERNAL,  /* CUexternalMemory; with keys of other kinds, what is mapped from one, or opened */
    ALLOC_GRAPH_EXEC, /* CUgraphExec: the memory that its launches need */
    ALLOC_MODULE,    /* CUmodule: its code */
    ALLOC_LIBRARY,   /* CUlibrary: its code in one context */
    ALLOC_IMPORTED   /* device memory of another process, by its handle */
};

struct alloc {
    union {
        uint64_t bytes;  /* charged; at most MIZAR_BYTES_MAX */
        uint64_t import; /* ALLOC_EXTERNAL: the import's number, at most that (imports.c) */
    };
    int card;
    enum alloc_kind kind;
    unsigned owner; /* number of the context with which it ends, or of its pool; 0: none */
    bool stand_in;  /* managed memory in place of card memory: stand_in.h */
};

/*
 * The key of a handle: the kind is added, since handles of different kinds may have the same value.
 * Addresses leave the high bits free. Memory has its address as key, whatever its kind.
 */
static inline uint64_t alloc_key(enum alloc_kind kind, const void *handle) {
    return (uint64_t)(uintptr_t)handle ^ (uint64_t)kind << 60;
}

/*
 * Adds an entry. `key` must not be 0 or UINT64_MAX. Returns false if there is no memory for the
 * table.
 */
bool alloc_table_put(struct process *process, uint64_t key, struct alloc alloc);

/* Prefetches the bucket of a key that alloc_table_put() or alloc_table_take() will use soon. */
void alloc_table_prefetch(struct process *process, uint64_t key);

/* Removes the key's entry into *alloc. If several threads take the same key, only one succeeds. */
bool alloc_table_take(struct process *process, uint64_t key, struct alloc *alloc);

/* Copies the key's entry to *alloc without removing it. Returns false if there is none. */
bool alloc_table_find(struct process *process, uint64_t key, struct alloc *alloc);

/*
 * Removes every entry for which `match` returns true, and passes it to `taken`. Slow: reads the
 * whole table.
 */
void alloc_table_sweep(struct process *process, bool (*match)(const struct alloc *alloc, void *context),
                       void (*taken)(uint64_t key, const struct alloc *alloc, void *context),
                       void *context);

#endif
