/* Virtual memory management: reserved addresses and mappings. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "physical.h"

struct reservation {
    struct region region; /* must come first */
    struct mapping *mappings;
};

struct mapping {
    uint64_t base, bytes;
    struct physical *physical;
    bool accessible;
    struct mapping *next;
};

/* ---- addresses ------------------------------------------------------------------------------ */

API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                                 CUdeviceptr wish, uint64_t flags) {
    (void)wish; /* a hint that may be ignored */
    TRY(driver_ready());
    if (!pointer || !bytes || bytes % PAGE_BYTES || flags || alignment & (alignment - 1))
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation *made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    made->region.kind = REGION_RESERVED;
    pthread_mutex_lock(&memory_lock);
    *pointer = address_take(&made->region, bytes, alignment);
    pthread_mutex_unlock(&memory_lock);
    if (*pointer) return CUDA_SUCCESS;
    free(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The reservation that contains [address, address + bytes), or NULL. */
static struct reservation *reservation_of(uint64_t address, uint64_t bytes) {
    struct region *region = address_owner(address);
    if (!region || region->kind != REGION_RESERVED || !bytes || bytes > region->bytes) return NULL;
    return address - region->base <= region->bytes - bytes ? (struct reservation *)region : NULL;
}

static CUresult free_addresses(CUdeviceptr pointer, size_t bytes) {
    struct reservation *found = reservation_of(pointer, bytes);
    if (!found || found->region.base != pointer || found->region.bytes != bytes || found->mappings)
        return CUDA_ERROR_INVALID_VALUE;
    address_give(&found->region);
    free(found);
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    TRY(driver_ready());
    pthread_mutex_lock(&memory_lock);
    CUresult result = free_addresses(pointer, bytes);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

/* ---- mappings; memory_lock held -------------------------------------------------------------- */

static struct mapping *mapping_at(const struct reservation *reservation, uint64_t address) {
    struct mapping *each = reservation->mappings;
    while (each && (address < each->base || address >= each->base + each->bytes)) each = each->next;
    return each;
}

static bool touches(const struct mapping *mapping, uint64_t base, uint64_t bytes) {
    return base < mapping->base + mapping->bytes && mapping->base < base + bytes;
}

static bool overlaps(const struct reservation *reservation, uint64_t base, uint64_t bytes) {
    for (const struct mapping *each = reservation->mappings; each; each = each->next)
        if (touches(each, base, bytes)) return true;
    return false;
}

bool vmm_covers(struct region *region, uint64_t address, uint64_t bytes) {
    const struct reservation *reservation = (const struct reservation *)region;
    while (bytes) {
        const struct mapping *mapping = mapping_at(reservation, address);
        if (!mapping || !mapping->accessible) return false;
        uint64_t rest = mapping->base + mapping->bytes - address;
        if (rest >= bytes) return true;
        address += rest;
        bytes -= rest;
    }
    return true;
}

static CUresult map(uint64_t base, uint64_t bytes, uint64_t offset, struct physical *physical) {
    struct reservation *reservation = reservation_of(base, bytes);
    if (!reservation || !physical || offset + bytes > physical->bytes || base % PAGE_BYTES ||
        bytes % PAGE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (overlaps(reservation, base, bytes)) return CUDA_ERROR_ALREADY_MAPPED;
    struct mapping *made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    if (mmap((void *)(uintptr_t)base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd,
             (off_t)offset) == MAP_FAILED) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct mapping){base, bytes, physical, false, reservation->mappings};
    reservation->mappings = made;
    physical_use(physical);
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                      CUmemGenericAllocationHandle handle, uint64_t flags) {
    TRY(driver_ready());
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = map(pointer, bytes, offset, physical_of(handle));
    pthread_mutex_unlock(&memory_lock);
    return result;
}

static bool inside(const struct mapping *mapping, uint64_t base, uint64_t bytes) {
    return mapping->base >= base && mapping->base + mapping->bytes <= base + bytes;
}

static void unmap_one(struct mapping **link) {
    struct mapping *mapping = *link;
    *link = mapping->next;
    address_unback(mapping->base, mapping->bytes);
    physical_drop(mapping->physical);
    free(mapping);
}

/* Only whole mappings can be unmapped. */
static CUresult unmap(uint64_t base, uint64_t bytes) {
    struct reservation *reservation = reservation_of(base, bytes);
    bool any = false;
    if (!reservation) return CUDA_ERROR_INVALID_VALUE;
    for (struct mapping *each = reservation->mappings; each; each = each->next)
        if (touches(each, base, bytes) && !inside(each, base, bytes))
            return CUDA_ERROR_INVALID_VALUE;
    for (struct mapping **link = &reservation->mappings; *link;) {
        if (!inside(*link, base, bytes)) {
            link = &(*link)->next;
            continue;
        }
        unmap_one(link);
        any = true;
    }
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    TRY(driver_ready());
    pthread_mutex_lock(&memory_lock);
    CUresult result = unmap(pointer, bytes);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

static CUresult set_access(uint64_t base, uint64_t bytes, int flags) {
    struct reservation *reservation = reservation_of(base, bytes);
    int protection = flags == CU_MEM_ACCESS_READWRITE ? PROT_READ | PROT_WRITE
                     : flags == CU_MEM_ACCESS_READ    ? PROT_READ
                                                      : PROT_NONE;
    if (!reservation) return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t at = base; at < base + bytes;) {
        struct mapping *mapping = mapping_at(reservation, at);
        if (!mapping) return CUDA_ERROR_INVALID_VALUE;
        mapping->accessible = protection != PROT_NONE;
        mprotect((void *)(uintptr_t)mapping->base, mapping->bytes, protection);
        at = mapping->base + mapping->bytes;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access,
                            size_t count) {
    CUresult result = CUDA_SUCCESS;
    TRY(driver_ready());
    if (!access || !count) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    for (size_t i = 0; i < count && !result; i++)
        result = set_access(pointer, bytes, access[i].flags);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

static struct mapping *find_mapping(uint64_t address) {
    struct reservation *reservation = reservation_of(address, 1);
    return reservation ? mapping_at(reservation, address) : NULL;
}

API CUresult cuMemGetAccess(uint64_t *flags, const CUmemLocation *location, CUdeviceptr pointer) {
    TRY(driver_ready());
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    const struct mapping *mapping = find_mapping(pointer);
    if (mapping) *flags = mapping->accessible ? CU_MEM_ACCESS_READWRITE : CU_MEM_ACCESS_NONE;
    pthread_mutex_unlock(&memory_lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct physical *vmm_physical_at(uint64_t address) {
    const struct mapping *mapping = find_mapping(address);
    return mapping ? mapping->physical : NULL;
}
