#define _GNU_SOURCE
#include "physical.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x564d4d21, POSIX_FD = 1 };

struct physical *physical_of(CUmemGenericAllocationHandle handle) {
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return physical && physical->magic == MAGIC ? physical : NULL;
}

/* Frees the memory after its last handle and last user are gone. */
static void settle(struct physical *physical) {
    if (physical->handles || physical->users) return;
    if (physical->on_card) sim_give(&driver.sim, physical->card, physical->bytes);
    holding_end(&physical->bound);
    close(physical->fd);
    physical->magic = 0;
    free(physical);
}

void physical_use(struct physical *physical) {
    physical->users++;
}

void physical_drop(struct physical *physical) {
    physical->users--;
    settle(physical);
}

/* ---- memory that other objects keep ---------------------------------------------------------- */

static struct holding **find(struct holding **all, uint64_t place) {
    while (*all && (*all)->place != place) all = &(*all)->next;
    return all;
}

bool holding_add(struct holding **all, uint64_t place, struct physical *physical) {
    struct holding *made = malloc(sizeof *made);
    if (!made) abort();
    *made = (struct holding){place, physical, *all};
    bool is_free = !*find(all, place);
    if (is_free) physical_use(physical);
    if (is_free) *all = made;
    else free(made);
    return is_free;
}

bool holding_remove(struct holding **all, uint64_t place) {
    struct holding **link = find(all, place), *gone = *link;
    if (!gone) return false;
    *link = gone->next;
    physical_drop(gone->physical);
    free(gone);
    return true;
}

void holding_end(struct holding **all) {
    while (*all) holding_remove(all, (*all)->place);
}

/* ---- handles --------------------------------------------------------------------------------- */

static struct physical *new_physical(uint64_t bytes, int fd, const CUmemAllocationProp *props) {
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical) return NULL;
    *physical =
        (struct physical){.magic = MAGIC, .bytes = bytes, .props = *props, .fd = fd, .handles = 1};
    return physical;
}

CUresult physical_create(CUmemGenericAllocationHandle *handle, uint64_t bytes,
                         const CUmemAllocationProp *props, struct physical **made) {
    int fd = memfd_create("simgpu", MFD_CLOEXEC);
    *made = fd < 0 || ftruncate(fd, (off_t)bytes) ? NULL : new_physical(bytes, fd, props);
    if (*made) {
        *handle = (uintptr_t)*made;
        return CUDA_SUCCESS;
    }
    if (fd >= 0) close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                         const CUmemAllocationProp *props, uint64_t flags) {
    struct physical *made;
    TRY(driver_ready());
    if (!handle || !props || !bytes || bytes % PAGE_BYTES || flags ||
        props->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return physical_create(handle, bytes, props, &made);
    TRY(driver_device(props->location.id));
    unsigned card = driver.card[props->location.id];
    if (sim_card_lost(&driver.sim, card)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!sim_take(&driver.sim, card, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = physical_create(handle, bytes, props, &made);
    if (result) sim_give(&driver.sim, card, bytes);
    else made->on_card = true, made->card = card;
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

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    TRY(driver_ready());
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    struct physical *found = vmm_physical_at((uintptr_t)address);
    if (found) {
        found->handles++;
        *handle = (uintptr_t)found;
    }
    pthread_mutex_unlock(&memory_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

/* The memory remains counted for the process that created it. */
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
