/* Memory shared between processes of one machine. The exporter's memory is moved to an in-memory
 * file, which the importer opens through /proc. It is not counted again. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

static const char magic[8] = "SIMIPC1";

/* The content of the 64 opaque bytes of a handle. */
struct ticket {
    char magic[8];
    int32_t pid, fd;
    uint64_t bytes; /* of the whole backing */
    uint64_t offset;
    uint32_t card, unused;
    uint64_t asked; /* bytes that the program requested */
};
_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "a ticket fits in a handle");

/* Moves the memory's bytes into a file and maps that file in place of the private pages. */
static int share(uint64_t base, uint64_t bytes) {
    int fd = memfd_create("simgpu-ipc", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) goto fail;
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (copy == MAP_FAILED) goto fail;
    memcpy(copy, (void *)(uintptr_t)base, bytes);
    munmap(copy, bytes);
    if (mmap((void *)(uintptr_t)base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             0) != MAP_FAILED)
        return fd;
fail:
    if (fd >= 0) close(fd);
    return -1;
}

static CUresult get_handle(struct ticket *ticket, CUdeviceptr pointer) {
    struct allocation *found = memory_find(pointer);
    if (!found || found->kind != MEMORY_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    /* Small allocations share a page, and only whole pages can be exported. */
    if (found->chunk) return CUDA_ERROR_NOT_SUPPORTED;
    if (found->share_fd < 0) found->share_fd = share(found->base, found->region.bytes);
    if (found->share_fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *ticket = (struct ticket){.pid = getpid(),
                              .fd = found->share_fd,
                              .bytes = found->region.bytes,
                              .offset = pointer - found->base,
                              .card = found->card,
                              .asked = found->bytes};
    memcpy(ticket->magic, magic, sizeof magic);
    return CUDA_SUCCESS;
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    struct ticket ticket;
    TRY(driver_ready());
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = get_handle(&ticket, pointer);
    pthread_mutex_unlock(&memory_lock);
    memset(handle, 0, sizeof *handle);
    if (!result) memcpy(handle, &ticket, sizeof ticket);
    return result;
}

static bool map_file(uint64_t base, uint64_t bytes, const struct ticket *ticket) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket->pid, ticket->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    void *map =
        mmap((void *)(uintptr_t)base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    close(fd);
    return map != MAP_FAILED;
}

static CUresult open_ticket(CUcontext context, const struct ticket *ticket, CUdeviceptr *pointer) {
    struct allocation *made;
    TRY(memory_reserve(context, ticket->bytes, &made));
    made->kind = MEMORY_IMPORTED;
    made->idle = false;
    made->bytes = ticket->asked;
    if (!map_file(made->base, ticket->bytes, ticket)) {
        memory_free(made);
        return CUDA_ERROR_INVALID_VALUE; /* the exporter has ended or is hidden */
    }
    *pointer = made->base + ticket->offset;
    return CUDA_SUCCESS;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    struct ticket ticket;
    CUcontext context;
    TRY(context_current(&context));
    memcpy(&ticket, &handle, sizeof ticket);
    if (!pointer || flags > 1 || memcmp(ticket.magic, magic, sizeof magic) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&memory_lock);
    CUresult result = open_ticket(context, &ticket, pointer);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    TRY(driver_ready());
    pthread_mutex_lock(&memory_lock);
    struct allocation *found = memory_find(pointer);
    bool imported = found && found->kind == MEMORY_IMPORTED;
    if (imported) memory_free(found);
    pthread_mutex_unlock(&memory_lock);
    return imported ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
