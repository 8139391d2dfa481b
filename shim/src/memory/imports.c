#include "memory/imports.h"

#include <stdlib.h>

#include "base/map.h"
#include "memory/alloc_table.h"
#include "memory/charge.h"

struct import {
    uint64_t bytes;
    int card;
    unsigned holders; /* number of: its handle, and objects mapped from it */
};

/*
 * Adds the import under a new number, which unlike a handle is never reused. Returns 0 without
 * memory.
 */
static uint64_t put(struct process *process, struct import *import) {
    lock_take(&process->import_lock);
    uint64_t number = ++process->imports_made;
    bool done = map_put(&process->imports, number, import);
    lock_release(&process->import_lock);
    return done ? number : 0;
}

uint64_t imports_add(struct regions *regions, int card, uint64_t bytes) {
    struct import *import = malloc(sizeof *import);
    if (!import) return 0;
    *import = (struct import){bytes, card, 1};
    uint64_t number = put(regions->process, import);
    /* NVML may count it for another process. */
    if (number) charge_absent(regions, card, (int64_t)bytes);
    else free(import);
    return number;
}

uint64_t imports_join(struct regions *regions, uint64_t key) {
    struct process *process = regions->process;
    struct alloc handle;
    if (!alloc_table_find(process, key, &handle) || handle.kind != ALLOC_EXTERNAL) return 0;
    lock_take(&process->import_lock);
    struct import *import = map_get(&process->imports, handle.import);
    if (import) import->holders++;
    lock_release(&process->import_lock);
    return import ? handle.import : 0;
}

/* Removes one holder. Returns the import if that was the last one, else NULL. */
static struct import *take_last(struct process *process, uint64_t number) {
    lock_take(&process->import_lock);
    struct import *import = map_get(&process->imports, number);
    bool last = !--import->holders;
    if (last) map_remove(&process->imports, number);
    lock_release(&process->import_lock);
    return last ? import : NULL;
}

void imports_leave(struct regions *regions, uint64_t number) {
    struct import *import = take_last(regions->process, number);
    if (!import) return;
    charge_release(regions, import->card, import->bytes);
    charge_absent(regions, import->card, -(int64_t)import->bytes);
    free(import);
}
