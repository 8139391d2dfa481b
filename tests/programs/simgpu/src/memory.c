/* Allocation and release of device memory, for all entry points. */
#include "external.h"

#include <stdlib.h>
#include <unistd.h>

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

static struct allocation *all; /* all live allocations, which end with their context */
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
        sim_move_managed(&driver.sim, allocation->card, (int64_t)bytes);
        allocation->charged = bytes;
        return true;
    }
    if (!sim_take(&driver.sim, allocation->card, bytes)) return false;
    if (allocation->pool) pool_grow(allocation->pool, bytes);
    allocation->charged = bytes;
    return true;
}

static void discharge(struct allocation *allocation) {
    if (allocation->kind == MEMORY_MANAGED)
        sim_move_managed(&driver.sim, allocation->card, -(int64_t)allocation->charged);
    else if (allocation->charged) sim_give(&driver.sim, allocation->card, allocation->charged);
    if (allocation->pool) pool_shrink(allocation->pool, allocation->charged);
    allocation->charged = 0;
}

uint64_t memory_address(enum memory_kind kind, struct region *region, uint64_t bytes) {
    return kind == MEMORY_LOW ? address_take_low(region, bytes)
                              : address_take(region, bytes, PAGE_BYTES);
}

static CUresult place_pages(struct allocation *allocation) {
    uint64_t bytes = round_up(allocation->bytes, PAGE_BYTES);
    if (bytes < allocation->bytes || !charge(allocation, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->region.kind = REGION_BLOCK;
    allocation->base = memory_address(allocation->kind, &allocation->region, bytes);
    if (allocation->base && address_back(allocation->base, bytes)) return CUDA_SUCCESS;
    if (allocation->base) address_give(&allocation->region);
    discharge(allocation);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct allocation *new_allocation(CUcontext context, enum memory_kind kind, uint64_t bytes) {
    struct allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation) return NULL;
    allocation->bytes = bytes;
    allocation->kind = kind;
    allocation->context = context_whole(context);
    allocation->device = context->device;
    allocation->card = context->card;
    allocation->share_fd = -1;
    allocation->id = ++last_id;
    return allocation;
}

static CUresult place(struct allocation *allocation, struct allocation **made) {
    if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
    bool small = allocation->bytes < SMALL_BYTES && allocation->kind != MEMORY_MANAGED;
    CUresult result = small ? chunk_place(allocation) : place_pages(allocation);
    if (result) {
        free(allocation);
        return result;
    }
    link_up(allocation);
    *made = allocation;
    return CUDA_SUCCESS;
}

CUresult memory_new(CUcontext context, enum memory_kind kind, uint64_t bytes,
                    struct allocation **made) {
    return place(new_allocation(context, kind, bytes), made);
}

CUresult memory_new_pooled(CUcontext context, CUmemoryPool pool, uint64_t bytes,
                           struct allocation **made) {
    struct allocation *allocation = new_allocation(context, MEMORY_POOL, bytes);
    if (allocation) allocation->pool = pool;
    return place(allocation, made);
}

void memory_free(struct allocation *allocation) {
    unlink_it(allocation);
    if (allocation->chunk) chunk_remove(allocation);
    else address_give(&allocation->region);
    discharge(allocation);
    if (allocation->share_fd >= 0) close(allocation->share_fd);
    if (allocation->external) external_drop(allocation->external);
    free(allocation);
}

struct allocation *memory_find(uint64_t address) {
    struct region *region = address_owner(address);
    if (!region || region->kind == REGION_RESERVED) return NULL;
    if (region->kind == REGION_CHUNK) return chunk_find(region, address);
    return (struct allocation *)region;
}

struct allocation *memory_first(void) {
    return all;
}

bool memory_covers(uint64_t address, uint64_t bytes) {
    struct region *region = address_owner(address);
    if (region && region->kind == REGION_RESERVED) return vmm_covers(region, address, bytes);
    struct allocation *found = memory_find(address); /* includes graph memory, which exists when
                                                        the graph runs */
    if (!found) return false;
    return bytes <= found->bytes && address - found->base <= found->bytes - bytes;
}

/* ---- memory of graphs ------------------------------------------------------------------------ */

CUresult memory_reserve(CUcontext context, uint64_t bytes, struct allocation **made) {
    struct allocation *allocation = new_allocation(context, MEMORY_GRAPH, bytes);
    if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->idle = true;
    allocation->base = address_take(&allocation->region, bytes, PAGE_BYTES);
    if (!allocation->base) {
        free(allocation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    link_up(allocation);
    *made = allocation;
    return CUDA_SUCCESS;
}

CUresult memory_back(struct allocation *allocation) {
    if (allocation->charged) return CUDA_SUCCESS;
    if (!charge(allocation, allocation->region.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (address_back(allocation->base, allocation->region.bytes)) return CUDA_SUCCESS;
    discharge(allocation);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_unback(struct allocation *allocation) {
    address_unback(allocation->base, allocation->region.bytes);
    discharge(allocation);
}

void memory_end_context(CUcontext context) {
    pthread_mutex_lock(&memory_lock);
    for (struct allocation *next, *each = all; each; each = next) {
        next = each->next;
        if (each->context != context) continue;
        if (each->pool) pool_forget(each);
        memory_free(each);
    }
    pthread_mutex_unlock(&memory_lock);
}
