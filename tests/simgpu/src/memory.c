/* Allocation and release, whatever the entry that asked for it. */
#include "memory.h"

#include <stdlib.h>
#include <unistd.h>

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

static struct allocation *all; /* every live allocation, for the end of a context */
static uint64_t last_id;

static void link_up(struct allocation *allocation) {
    allocation->next = all;
    allocation->link = &all;
    if (all) all->link = &allocation->next;
    all = allocation;
}

static void unlink_it(struct allocation *allocation) {
    *allocation->link = allocation->next;
    if (allocation->next) allocation->next->link = allocation->link;
}

static bool charge(struct allocation *allocation, uint64_t bytes) {
    if (allocation->kind == MEMORY_MANAGED) {
        driver.sim.state->processes[driver.sim.slot].managed[allocation->card] += bytes;
        allocation->charged = bytes;
        return true;
    }
    if (!sim_take(&driver.sim, allocation->card, bytes)) return false;
    allocation->charged = bytes;
    return true;
}

static void discharge(struct allocation *allocation) {
    if (allocation->kind == MEMORY_MANAGED)
        driver.sim.state->processes[driver.sim.slot].managed[allocation->card] -=
            allocation->charged;
    else if (allocation->charged)
        sim_give(&driver.sim, allocation->card, allocation->charged);
    allocation->charged = 0;
}

static CUresult place_pages(struct allocation *allocation) {
    uint64_t bytes = round_up(allocation->bytes, PAGE_BYTES);
    if (bytes < allocation->bytes || !charge(allocation, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->region.kind = REGION_BLOCK;
    allocation->base = address_take(&allocation->region, bytes, PAGE_BYTES);
    if (allocation->base && address_back(allocation->base, bytes)) return CUDA_SUCCESS;
    if (allocation->base) address_give(&allocation->region);
    discharge(allocation);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_new(CUcontext context, enum memory_kind kind, uint64_t bytes,
                    struct allocation **made) {
    struct allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->bytes = bytes;
    allocation->kind = kind;
    allocation->context = context;
    allocation->device = context->device;
    allocation->card = context->card;
    allocation->share_fd = -1;
    bool small = bytes < SMALL_BYTES && kind != MEMORY_MANAGED;
    CUresult result = small ? chunk_place(allocation) : place_pages(allocation);
    if (result) {
        free(allocation);
        return result;
    }
    allocation->id = ++last_id;
    link_up(allocation);
    *made = allocation;
    return CUDA_SUCCESS;
}

void memory_free(struct allocation *allocation) {
    unlink_it(allocation);
    if (allocation->chunk) chunk_remove(allocation);
    else address_give(&allocation->region);
    discharge(allocation);
    if (allocation->share_fd >= 0) close(allocation->share_fd);
    free(allocation);
}

struct allocation *memory_find(uint64_t address) {
    struct region *region = address_owner(address);
    if (!region || region->kind == REGION_RESERVED) return NULL;
    if (region->kind == REGION_CHUNK) return chunk_find(region, address);
    return (struct allocation *)region;
}

void memory_end_context(CUcontext context) {
    pthread_mutex_lock(&memory_lock);
    for (struct allocation *next, *each = all; each; each = next) {
        next = each->next;
        if (each->context == context) memory_free(each);
    }
    pthread_mutex_unlock(&memory_lock);
}
