/* Memory and addresses apart: reserved addresses, physical handles, mappings. A handle is a file in
 * memory, so that it can be mapped at several addresses and given to other processes. */
#define _GNU_SOURCE
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x564d4d21, POSIX_FD = 1 };

struct physical {
    uint32_t magic;
    uint64_t bytes;
    CUmemAllocationProp props;
    bool on_card; /* counted on `card`; host memory and imports are not */
    unsigned card;
    int fd;
    unsigned handles, mappings;
};

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

static struct physical *physical_of(CUmemGenericAllocationHandle handle) {
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return physical && physical->magic == MAGIC ? physical : NULL;
}

/* The memory goes with the last handle and the last mapping. */
static void settle(struct physical *physical) {
    if (physical->handles || physical->mappings) return;
    if (physical->on_card) sim_give(&driver.sim, physical->card, physical->bytes);
    close(physical->fd);
    physical->magic = 0;
    free(physical);
}

/* ---- addresses ------------------------------------------------------------------------------ */

API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                                 CUdeviceptr wish, uint64_t flags) {
    (void)wish; /* a hint only */
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

/* The reservation around [address, address + bytes), or NULL. */
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

/* ---- physical memory ------------------------------------------------------------------------ */

static struct physical *new_physical(uint64_t bytes, int fd, const CUmemAllocationProp *props) {
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical) return NULL;
    *physical =
        (struct physical){.magic = MAGIC, .bytes = bytes, .props = *props, .fd = fd, .handles = 1};
    return physical;
}

static CUresult create(CUmemGenericAllocationHandle *handle, uint64_t bytes,
                       const CUmemAllocationProp *props) {
    int fd = memfd_create("simgpu", MFD_CLOEXEC);
    struct physical *made =
        fd < 0 || ftruncate(fd, (off_t)bytes) ? NULL : new_physical(bytes, fd, props);
    if (!made) {
        if (fd >= 0) close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->on_card = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (made->on_card) made->card = driver.card[props->location.id];
    *handle = (uintptr_t)made;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                         const CUmemAllocationProp *props, uint64_t flags) {
    TRY(driver_ready());
    if (!handle || !props || !bytes || bytes % PAGE_BYTES || flags ||
        props->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return create(handle, bytes, props);
    TRY(driver_device(props->location.id));
    unsigned card = driver.card[props->location.id];
    if (sim_card_lost(&driver.sim, card)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!sim_take(&driver.sim, card, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = create(handle, bytes, props);
    if (result) sim_give(&driver.sim, card, bytes);
    return result;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    TRY(driver_ready());
    pthread_mutex_lock(&memory_lock);
    struct physical *physical = physical_of(handle);
    bool held = physical && physical->handles;
    if (held) {
        physical->handles--;
        settle(physical);
    }
    pthread_mutex_unlock(&memory_lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *props,
                                           int which) {
    TRY(driver_ready());
    if (!bytes || !props || which < 0 || which > 1) return CUDA_ERROR_INVALID_VALUE;
    *bytes = PAGE_BYTES;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *props,
                                                    CUmemGenericAllocationHandle handle) {
    TRY(driver_ready());
    const struct physical *physical = physical_of(handle);
    if (!props || !physical) return CUDA_ERROR_INVALID_VALUE;
    *props = physical->props;
    return CUDA_SUCCESS;
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
    physical->mappings++;
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
    mapping->physical->mappings--;
    settle(mapping->physical);
    free(mapping);
}

/* Only whole mappings are undone. */
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

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    TRY(driver_ready());
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    const struct mapping *mapping = find_mapping((uintptr_t)address);
    if (mapping) {
        mapping->physical->handles++;
        *handle = (uintptr_t)mapping->physical;
    }
    pthread_mutex_unlock(&memory_lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- between processes ---------------------------------------------------------------------- */

API CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle,
                                          int type, uint64_t flags) {
    TRY(driver_ready());
    const struct physical *physical = physical_of(handle);
    if (!shared || !physical || flags) return CUDA_ERROR_INVALID_VALUE;
    if (type != POSIX_FD) return CUDA_ERROR_NOT_SUPPORTED;
    *(int *)shared = dup(physical->fd);
    return CUDA_SUCCESS;
}

/* The memory stays counted where it was created. */
API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                            int type) {
    CUmemAllocationProp props = {
        CU_MEM_ALLOCATION_TYPE_PINNED, POSIX_FD, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, NULL, {0}};
    struct stat info;
    TRY(driver_ready());
    if (!handle || type != POSIX_FD) return CUDA_ERROR_INVALID_VALUE;
    int fd = dup((int)(intptr_t)shared);
    if (fd < 0 || fstat(fd, &info)) return CUDA_ERROR_INVALID_VALUE;
    *handle = (uintptr_t)new_physical((uint64_t)info.st_size, fd, &props);
    return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
