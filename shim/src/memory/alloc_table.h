/*
 * What each live object of this process costs: key -> (card, bytes). Lock-free; every operation
 * looks at one short bucket per segment, however many objects live.
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
    ALLOC_EXTERNAL,  /* CUexternalMemory; with keys of other kinds, what is mapped from one */
    ALLOC_GRAPH_EXEC, /* CUgraphExec: the memory that its launches need */
    ALLOC_MODULE,    /* CUmodule: its code */
    ALLOC_LIBRARY,   /* CUlibrary: its code in one context */
    ALLOC_IMPORTED   /* device memory of another process, by its address or handle */
};

#define ALLOC_OWNER_MAX 1023u

struct alloc {
    union {
        uint64_t bytes;  /* charged; up to MIZAR_BYTES_MAX */
        uint64_t import; /* ALLOC_EXTERNAL: its number, no larger; what it costs is in imports.c */
    };
    int card;
    enum alloc_kind kind;
    unsigned owner; /* number of the context it dies with, or of its pool; 0: of none */
    bool stand_in;  /* managed memory, where the card had none left: stand_in.h */
};

/*
 * Handles of different kinds may have the same value; addresses have the high bits free. Memory
 * goes by its plain address, whatever its kind.
 */
static inline uint64_t alloc_key(enum alloc_kind kind, const void *handle) {
    return (uint64_t)(uintptr_t)handle ^ (uint64_t)kind << 60;
}

/* False when there is no memory for the table. `key` is not 0 and not UINT64_MAX. */
bool alloc_table_put(struct process *process, uint64_t key, struct alloc alloc);

/* alloc_table_put or alloc_table_take of this key is about to come. */
void alloc_table_prefetch(struct process *process, uint64_t key);

/* Removes the entry: of two threads that take the same key, one gets it. */
bool alloc_table_take(struct process *process, uint64_t key, struct alloc *alloc);

/* Looks without removing. */
bool alloc_table_find(struct process *process, uint64_t key, struct alloc *alloc);

/* Takes every entry that `match` agrees to, and hands it to `match`. Slow: looks at everything. */
void alloc_table_sweep(struct process *process, bool (*match)(const struct alloc *alloc, void *context),
                       void (*taken)(uint64_t key, const struct alloc *alloc, void *context),
                       void *context);

#endif
