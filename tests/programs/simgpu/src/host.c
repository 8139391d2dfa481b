#define _GNU_SOURCE
#include "host.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct host_range *ranges;

static bool covers(const struct host_range *range, const char *address) {
    return address >= range->base && address < range->base + range->bytes;
}

const struct host_range *host_find(const void *address) {
    pthread_mutex_lock(&lock);
    const struct host_range *found = ranges;
    while (found && !covers(found, address)) found = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

static CUresult add(void *base, size_t bytes, unsigned flags, bool registered) {
    struct host_range *range = malloc(sizeof *range);
    CUcontext context;
    if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
    if (context_current(&context)) context = NULL;
    *range = (struct host_range){base, bytes, flags, registered, context, NULL};
    pthread_mutex_lock(&lock);
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Removes the range that begins at `base` from the list and returns it, or NULL. */
static struct host_range *take(void *base, bool registered) {
    pthread_mutex_lock(&lock);
    struct host_range **link = &ranges, *found = NULL;
    while (*link && ((*link)->base != base || (*link)->registered != registered))
        link = &(*link)->next;
    if ((found = *link)) *link = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    CUcontext context;
    TRY(context_current(&context));
    if (!pointer || !bytes || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = made;
    return add(made, bytes, flags, false);
}

API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    TRY(capture_permits());
    return cuMemHostAlloc(pointer, bytes, 0);
}

API CUresult cuMemAllocHost(void **pointer, unsigned bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

API CUresult cuMemFreeHost(void *pointer) {
    TRY(capture_permits());
    TRY(driver_ready());
    if (!pointer) return CUDA_SUCCESS;
    struct host_range *range = take(pointer, false);
    if (!range) return CUDA_ERROR_INVALID_VALUE;
    munmap(range->base, range->bytes);
    free(range);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    CUcontext context;
    TRY(context_current(&context));
    if (!pointer || !bytes || flags > 15) return CUDA_ERROR_INVALID_VALUE;
    if (host_find(pointer)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return add(pointer, bytes, flags, true);
}

API CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned flags) {
    return cuMemHostRegister_v2(pointer, bytes, flags);
}

API CUresult cuMemHostUnregister(void *pointer) {
    TRY(driver_ready());
    struct host_range *range = take(pointer, true);
    if (!range) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    free(range);
    return CUDA_SUCCESS;
}

/* Host memory has the same address on the device. */
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned flags) {
    TRY(driver_ready());
    if (!device || flags || !host_find(host)) return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *pointer) {
    TRY(driver_ready());
    const struct host_range *range = host_find(pointer);
    if (!flags || !range) return CUDA_ERROR_INVALID_VALUE;
    *flags = range->flags;
    return CUDA_SUCCESS;
}
