#include "vmm.h"

#include <stdlib.h>

#include "account.h"
#include "map.h"

struct vmm_handle {
    uint64_t bytes;
    int card;
    unsigned references, mappings;
};

struct vmm_mapping {
    uint64_t bytes;
    CUmemGenericAllocationHandle handle;
    struct vmm_handle *memory;
};

void vmm_lock(struct regions *regions) {
    process_lock(&regions->process->vmm_lock);
}

void vmm_unlock(struct regions *regions) {
    process_unlock(&regions->process->vmm_lock);
}

/*
 * A driver may give a new object the number of one that is only mapped any more: then the old one
 * is reached through its mappings alone.
 */
bool vmm_add(struct charge *charge, CUmemGenericAllocationHandle handle) {
    struct vmm_handle *memory = malloc(sizeof *memory);
    if (!memory) return false;
    *memory = (struct vmm_handle){charge->alloc.bytes, charge->alloc.card, 1, 0};
    vmm_lock(charge->regions);
    bool added = map_put(&charge->regions->process->vmm_handles, handle, memory);
    vmm_unlock(charge->regions);
    if (!added) free(memory);
    return added;
}

static struct vmm_handle *find(struct regions *regions, CUmemGenericAllocationHandle handle) {
    return map_get(&regions->process->vmm_handles, handle);
}

void vmm_retain(struct regions *regions, CUmemGenericAllocationHandle handle) {
    vmm_lock(regions);
    struct vmm_handle *memory = find(regions, handle);
    if (memory) memory->references++;
    vmm_unlock(regions);
}

static void drop_unused(struct regions *regions, CUmemGenericAllocationHandle handle,
                        struct vmm_handle *memory) {
    if (memory->references || memory->mappings) return;
    if (find(regions, handle) == memory) map_remove(&regions->process->vmm_handles, handle);
    account_release(regions, memory->card, memory->bytes);
    free(memory);
}

void vmm_release(struct regions *regions, CUmemGenericAllocationHandle handle) {
    struct vmm_handle *memory = find(regions, handle);
    if (!memory || !memory->references) return;
    memory->references--;
    drop_unused(regions, handle, memory);
}

bool vmm_may_map(struct regions *regions, CUmemGenericAllocationHandle handle, uint64_t bytes) {
    struct vmm_handle *memory = find(regions, handle);
    if (!memory || memory->card == CARD_NONE || bytes <= memory->bytes) return true;
    if (!account_reserve(regions, memory->card, bytes - memory->bytes)) return false;
    memory->bytes = bytes;
    return true;
}

void vmm_map(struct regions *regions, CUdeviceptr pointer, uint64_t bytes,
             CUmemGenericAllocationHandle handle) {
    struct vmm_handle *memory = find(regions, handle);
    struct vmm_mapping *mapping = memory ? malloc(sizeof *mapping) : NULL;
    if (!mapping) return;
    *mapping = (struct vmm_mapping){bytes, handle, memory};
    if (map_put(&regions->process->vmm_mappings, pointer, mapping))
        memory->mappings++;
    else
        free(mapping);
}

void vmm_unmap(struct regions *regions, CUdeviceptr pointer, uint64_t bytes) {
    CUdeviceptr end = pointer + bytes;
    while (pointer < end) {
        struct vmm_mapping *mapping = map_remove(&regions->process->vmm_mappings, pointer);
        if (!mapping) return;
        pointer += mapping->bytes;
        mapping->memory->mappings--;
        drop_unused(regions, mapping->handle, mapping->memory);
        free(mapping);
    }
}
