#include "memory/vmm.h"

#include <stdlib.h>

#include "base/map.h"
#include "base/proc.h"
#include "memory/charge.h"
#include "memory/charge_or_reclaim.h"

struct vmm_handle {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    int card;
    bool imported; /* from another process, which is charged for it as well */
    unsigned references, mappings, keepers;
    unsigned calls; /* number of calls of the driver in progress for it */
    struct vmm_export *exports;
    struct vmm_keeper *kept; /* what it keeps, if its handle was given to another object */
    struct vmm_handle *next; /* in the list of those that only exports hold */
};

/* A descriptor that was exported for the handle, and the file that it referred to. */
struct vmm_export {
    struct proc_file file;
    struct vmm_export *next;
};

struct vmm_mapping {
    uint64_t bytes;
    struct vmm_handle *memory; /* NULL: not known */
    struct vmm_mapping *next; /* the mapping after it, while they are being unmapped */
};

/* The memory that an object keeps, each once; key and value are the address of the vmm_handle. */
struct vmm_keeper {
    struct map kept;
};

static struct vmm_handle *find(struct regions *regions, CUmemGenericAllocationHandle handle) {
    return map_get(&regions->process->vmm_handles, handle);
}

void vmm_lock(struct regions *regions) {
    lock_take(&regions->process->vmm_lock);
}

void vmm_unlock(struct regions *regions) {
    lock_release(&regions->process->vmm_lock);
}

/*
 * Adds a handle. The driver may reuse the handle of memory that only mappings still hold, or that
 * is being released: the old entry is then reached only through its mappings, or by the thread that
 * releases it.
 */
static bool put(struct regions *regions, struct vmm_handle *memory) {
    struct process *process = regions->process;
    struct vmm_handle *old = find(regions, memory->handle);
    if (!map_put(&process->vmm_handles, memory->handle, memory)) return false;
    if (old) old->kept = map_remove(&process->vmm_keepers, memory->handle);
    return true;
}

bool vmm_add(struct regions *regions, const struct alloc *alloc, CUmemGenericAllocationHandle handle) {
    struct vmm_handle *memory = malloc(sizeof *memory);
    if (!memory) return false;
    *memory = (struct vmm_handle){.handle = handle,
                                  .bytes = alloc->bytes,
                                  .card = alloc->card,
                                  .imported = alloc->kind == ALLOC_IMPORTED,
                                  .references = 1};
    vmm_lock(regions);
    bool added = put(regions, memory);
    vmm_unlock(regions);
    if (!added) free(memory);
    return added;
}

void vmm_retain(struct regions *regions, CUmemGenericAllocationHandle handle) {
    struct vmm_handle *memory = find(regions, handle);
    if (memory) memory->references++;
}

/* ---- the end of memory ----------------------------------------------------------------------- */

/* Forgets descriptors that were closed, up to the first open one. Returns whether there is one. */
static bool is_exported(struct vmm_handle *memory) {
    struct vmm_export **link = &memory->exports;
    while (*link) {
        struct vmm_export *export = *link;
        if (proc_file_is(&export->file)) return true;
        *link = export->next;
        free(export);
    }
    return false;
}

static void note_absent(struct regions *regions, const struct vmm_handle *memory, int64_t more) {
    if (memory->imported) charge_absent(regions, memory->card, more);
}

static void give_back(struct regions *regions, struct vmm_handle *memory) {
    charge_release(regions, memory->card, memory->bytes);
    note_absent(regions, memory, -(int64_t)memory->bytes);
    free(memory);
}

static void release_keeper(struct regions *regions, struct vmm_keeper *keeper);

static void drop_unused(struct regions *regions, struct vmm_handle *memory) {
    struct process *process = regions->process;
    struct vmm_keeper *kept = memory->kept;
    if (memory->references || memory->mappings || memory->keepers || memory->calls) return;
    if (find(regions, memory->handle) == memory) {
        map_remove(&process->vmm_handles, memory->handle);
        kept = map_remove(&process->vmm_keepers, memory->handle);
    }
    release_keeper(regions, kept);
    if (is_exported(memory)) {
        memory->next = process->vmm_exported;
        process->vmm_exported = memory;
    } else {
        give_back(regions, memory);
    }
}

bool vmm_settle(struct regions *regions) {
    bool any = false;
    vmm_lock(regions);
    struct vmm_handle **link = &regions->process->vmm_exported;
    while (*link) {
        struct vmm_handle *memory = *link;
        if (is_exported(memory)) {
            link = &memory->next;
            continue;
        }
        *link = memory->next;
        give_back(regions, memory);
        any = true;
    }
    vmm_unlock(regions);
    return any;
}

/* ---- calls of the driver --------------------------------------------------------------------- */

struct vmm_handle *vmm_begin(struct regions *regions, CUmemGenericAllocationHandle handle) {
    vmm_lock(regions);
    struct vmm_handle *memory = find(regions, handle);
    if (memory) memory->calls++;
    vmm_unlock(regions);
    return memory;
}

/* The caller holds the lock. */
static void end_call(struct regions *regions, struct vmm_handle *memory) {
    memory->calls--;
    drop_unused(regions, memory);
}

void vmm_end_release(struct regions *regions, struct vmm_handle *memory, bool done) {
    if (!memory) return;
    vmm_lock(regions);
    if (done && memory->references) memory->references--;
    end_call(regions, memory);
    vmm_unlock(regions);
}

/* ---- mappings -------------------------------------------------------------------------------- */

/* Bytes to charge for imported memory, whose size is known only when it is mapped. */
static uint64_t uncharged(const struct vmm_handle *memory, uint64_t bytes) {
    return memory && memory->card != CARD_NONE && bytes > memory->bytes ? bytes - memory->bytes : 0;
}

static void make_larger(struct regions *regions, struct vmm_handle *memory, uint64_t more) {
    if (!more) return;
    note_absent(regions, memory, (int64_t)more);
    memory->bytes += more;
}

/* What is charged for memory that is about to be mapped. */
struct vmm_advance {
    int card;
    uint64_t bytes;
};

/*
 * Begins a mapping if what is charged suffices, and gives back what it does not need. Otherwise,
 * says how much has to be charged.
 */
static bool begin_map(struct regions *regions, CUmemGenericAllocationHandle handle, uint64_t bytes,
                      struct vmm_advance *advance, struct vmm_handle **memory) {
    struct vmm_advance unused = *advance;
    vmm_lock(regions);
    *memory = find(regions, handle);
    uint64_t more = uncharged(*memory, bytes);
    bool enough = !more || (more <= advance->bytes && (*memory)->card == advance->card);
    if (enough) {
        make_larger(regions, *memory, more);
        if (*memory) (*memory)->calls++;
        unused.bytes -= more;
    } else {
        *advance = (struct vmm_advance){(*memory)->card, more};
    }
    vmm_unlock(regions);
    if (unused.bytes) charge_release(regions, unused.card, unused.bytes);
    return enough;
}

/*
 * Charges without the lock, which the release of unused memory takes. Meanwhile another thread may
 * map the same memory, or end it, so it is looked up again.
 */
struct vmm_mapping *vmm_begin_map(struct regions *regions, CUmemGenericAllocationHandle handle,
                                  uint64_t bytes) {
    struct vmm_advance advance = {CARD_NONE, 0};
    struct vmm_handle *memory;
    struct vmm_mapping *mapping = malloc(sizeof *mapping);
    if (!mapping) return NULL;
    while (!begin_map(regions, handle, bytes, &advance, &memory)) {
        if (charge_or_reclaim(regions, advance.card, advance.bytes)) continue;
        free(mapping);
        return NULL;
    }
    *mapping = (struct vmm_mapping){bytes, memory, NULL};
    return mapping;
}

/* If the table has no room for the mapping, its memory stays charged. */
static void put_mapping(struct regions *regions, CUdeviceptr pointer, struct vmm_mapping *mapping) {
    mapping->next = NULL;
    if (!map_put(&regions->process->vmm_mappings, pointer, mapping)) free(mapping);
}

void vmm_end_map(struct regions *regions, CUdeviceptr pointer, struct vmm_mapping *mapping,
                 bool done) {
    struct vmm_handle *memory = mapping->memory;
    if (!memory || !done) free(mapping);
    if (!memory) return;
    vmm_lock(regions);
    memory->mappings += done;
    if (done) put_mapping(regions, pointer, mapping);
    end_call(regions, memory);
    vmm_unlock(regions);
}

struct vmm_mapping *vmm_lift_mappings(struct regions *regions, CUdeviceptr pointer,
                                      uint64_t bytes) {
    struct vmm_mapping *first = NULL, **link = &first;
    vmm_lock(regions);
    for (CUdeviceptr end = pointer + bytes; pointer < end; link = &(*link)->next) {
        *link = map_remove(&regions->process->vmm_mappings, pointer);
        if (!*link) break;
        pointer += (*link)->bytes;
    }
    vmm_unlock(regions);
    return first;
}

static void end_mapping(struct regions *regions, struct vmm_mapping *mapping) {
    mapping->memory->mappings--;
    drop_unused(regions, mapping->memory);
    free(mapping);
}

void vmm_finish_mappings(struct regions *regions, CUdeviceptr pointer, struct vmm_mapping *first,
                         bool gone) {
    if (!first) return;
    vmm_lock(regions);
    for (struct vmm_mapping *next; first; first = next) {
        CUdeviceptr end = pointer + first->bytes;
        next = first->next;
        if (gone) end_mapping(regions, first);
        else put_mapping(regions, pointer, first);
        pointer = end;
    }
    vmm_unlock(regions);
}

/* ---- memory that other objects keep ---------------------------------------------------------- */

static struct vmm_keeper *find_or_add_keeper(struct process *process, uint64_t key) {
    struct vmm_keeper *keeper = map_get(&process->vmm_keepers, key);
    if (keeper) return keeper;
    keeper = calloc(1, sizeof *keeper);
    if (!keeper || map_put(&process->vmm_keepers, key, keeper)) return keeper;
    free(keeper);
    return NULL;
}

bool vmm_keep(struct regions *regions, uint64_t key, CUmemGenericAllocationHandle handle) {
    struct vmm_handle *memory = find(regions, handle);
    if (!memory) return true;
    struct vmm_keeper *keeper = find_or_add_keeper(regions->process, key);
    uint64_t place = (uint64_t)(uintptr_t)memory;
    if (!keeper) return false;
    if (map_get(&keeper->kept, place)) return true;
    if (!map_put(&keeper->kept, place, memory)) return false;
    memory->keepers++;
    return true;
}

static void let_go(void *memory, void *regions) {
    ((struct vmm_handle *)memory)->keepers--;
    drop_unused(regions, memory);
}

static void release_keeper(struct regions *regions, struct vmm_keeper *keeper) {
    if (!keeper) return;
    map_drain(&keeper->kept, let_go, regions);
    free(keeper);
}

struct vmm_keeper *vmm_lift(struct regions *regions, uint64_t key) {
    if (!regions) return NULL;
    vmm_lock(regions);
    struct vmm_keeper *keeper = map_remove(&regions->process->vmm_keepers, key);
    vmm_unlock(regions);
    return keeper;
}

void vmm_finish(struct regions *regions, uint64_t key, struct vmm_keeper *keeper, bool gone) {
    if (!keeper) return;
    vmm_lock(regions);
    if (gone)
        release_keeper(regions, keeper);
    else
        map_put(&regions->process->vmm_keepers, key, keeper);
    vmm_unlock(regions);
}

/* ---- exports --------------------------------------------------------------------------------- */

static void add_export(struct vmm_handle *memory, int fd) {
    struct vmm_export *export = malloc(sizeof *export);
    if (!export) return;
    *export = (struct vmm_export){.next = memory->exports};
    if (proc_file(fd, &export->file))
        memory->exports = export;
    else
        free(export);
}

void vmm_end_export(struct regions *regions, struct vmm_handle *memory, int fd) {
    if (!memory) return;
    vmm_lock(regions);
    if (fd >= 0) add_export(memory, fd);
    end_call(regions, memory);
    vmm_unlock(regions);
}
