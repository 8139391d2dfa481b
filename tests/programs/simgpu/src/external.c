/* External memory: memory of other APIs, imported as the descriptor of an in-memory file. The card
 * counts it for the importing process from the import until its handle and all mappings of it are
 * gone. */
#include "external.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x45585421, OPAQUE_FD = 1, DEDICATED = 1, FILE_PAGE = 4096 };

struct CUextMemory_st {
    uint32_t magic;
    unsigned card;
    int fd;
    uint64_t bytes;
    unsigned users; /* its handle and its mappings */
    CUcontext context;
    CUexternalMemory next, *link; /* in the list of handles */
};

static CUexternalMemory all; /* guarded by memory_lock */

static CUresult check(CUexternalMemory external) {
    TRY(driver_ready());
    return external && external->magic == MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void external_drop(CUexternalMemory external) {
    if (--external->users) return;
    sim_give(&driver.sim, external->card, round_up(external->bytes, PAGE_BYTES));
    close(external->fd);
    free(external);
}

static void link_up(CUexternalMemory external) {
    pthread_mutex_lock(&memory_lock);
    external->next = all;
    external->link = &all;
    if (all) all->link = &external->next;
    all = external;
    pthread_mutex_unlock(&memory_lock);
}

static void end_handle(CUexternalMemory external) {
    *external->link = external->next;
    if (external->next) external->next->link = external->link;
    external->magic = 0;
    external_drop(external);
}

void external_end_context(CUcontext context) {
    pthread_mutex_lock(&memory_lock);
    for (CUexternalMemory next, each = all; each; each = next) {
        next = each->next;
        if (each->context == context) end_handle(each);
    }
    pthread_mutex_unlock(&memory_lock);
}

static bool holds(int fd, uint64_t bytes) {
    struct stat info;
    return fstat(fd, &info) == 0 && bytes && bytes <= (uint64_t)info.st_size;
}

/* From now on, the driver owns the descriptor. */
API CUresult cuImportExternalMemory(CUexternalMemory *external,
                                    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from) {
    CUcontext context;
    TRY(context_current(&context));
    if (!external || !from || from->flags & ~(unsigned)DEDICATED) return CUDA_ERROR_INVALID_VALUE;
    if (from->type != OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
    if (!holds(from->handle.fd, from->size)) return CUDA_ERROR_INVALID_VALUE;
    CUexternalMemory made = calloc(1, sizeof *made);
    if (!made) abort();
    *made = (struct CUextMemory_st){.magic = MAGIC, .card = context->card, .fd = from->handle.fd,
                                    .bytes = from->size, .users = 1,
                                    .context = context_whole(context)};
    if (!sim_take(&driver.sim, context->card, round_up(from->size, PAGE_BYTES))) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    link_up(made);
    *external = made;
    return CUDA_SUCCESS;
}

API CUresult cuDestroyExternalMemory(CUexternalMemory external) {
    TRY(check(external));
    pthread_mutex_lock(&memory_lock);
    end_handle(external);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

static CUresult map(CUcontext context, CUexternalMemory external, uint64_t offset, uint64_t bytes,
                    struct allocation **made) {
    TRY(memory_reserve(context, bytes, made));
    void *at = mmap((void *)(uintptr_t)(*made)->base, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, external->fd, (off_t)offset);
    if (at == MAP_FAILED) {
        memory_free(*made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*made)->kind = MEMORY_EXTERNAL;
    (*made)->idle = false;
    (*made)->external = external;
    external->users++;
    return CUDA_SUCCESS;
}

CUresult external_map(CUexternalMemory external, uint64_t offset, uint64_t bytes,
                      struct allocation **made) {
    CUcontext context;
    TRY(check(external));
    TRY(context_current(&context));
    if (!bytes || offset % FILE_PAGE || offset > external->bytes ||
        bytes > external->bytes - offset)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = map(context, external, offset, bytes, made);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

/* The program frees the buffer by cuMemFree. */
API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory external,
                                             const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *shape) {
    struct allocation *made;
    TRY(driver_ready());
    if (!pointer || !shape || shape->flags) return CUDA_ERROR_INVALID_VALUE;
    TRY(external_map(external, shape->offset, shape->size, &made));
    *pointer = made->base;
    return CUDA_SUCCESS;
}
