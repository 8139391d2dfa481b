/* Memory of other interfaces, as a descriptor of a file in memory. It is on the card, counted by who
 * imports it, from then on until the object and every buffer on it are gone. */
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
    unsigned users; /* its handle, and buffers */
};

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

static bool holds(int fd, uint64_t bytes) {
    struct stat info;
    return fstat(fd, &info) == 0 && bytes && bytes <= (uint64_t)info.st_size;
}

/* From now on the descriptor is the driver's. */
API CUresult cuImportExternalMemory(CUexternalMemory *external,
                                    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from) {
    CUcontext context;
    TRY(context_current(&context));
    if (!external || !from || from->flags & ~(unsigned)DEDICATED) return CUDA_ERROR_INVALID_VALUE;
    if (from->type != OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
    if (!holds(from->handle.fd, from->size)) return CUDA_ERROR_INVALID_VALUE;
    CUexternalMemory made = calloc(1, sizeof *made);
    if (!made) abort();
    *made = (struct CUextMemory_st){MAGIC, context->card, from->handle.fd, from->size, 1};
    if (sim_take(&driver.sim, context->card, round_up(from->size, PAGE_BYTES))) {
        *external = made;
        return CUDA_SUCCESS;
    }
    free(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuDestroyExternalMemory(CUexternalMemory external) {
    TRY(check(external));
    pthread_mutex_lock(&memory_lock);
    external->magic = 0;
    external_drop(external);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

static CUresult map(CUcontext context, CUexternalMemory external,
                    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *shape, CUdeviceptr *pointer) {
    struct allocation *made;
    TRY(memory_reserve(context, shape->size, &made));
    void *at = mmap((void *)(uintptr_t)made->base, shape->size, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, external->fd, (off_t)shape->offset);
    if (at == MAP_FAILED) {
        memory_free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->kind = MEMORY_EXTERNAL;
    made->idle = false;
    made->external = external;
    external->users++;
    *pointer = made->base;
    return CUDA_SUCCESS;
}

/* The buffer is freed by cuMemFree. */
API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory external,
                                             const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *shape) {
    CUcontext context;
    TRY(check(external));
    TRY(context_current(&context));
    if (!pointer || !shape || !shape->size || shape->flags || shape->offset % FILE_PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    if (shape->offset > external->bytes || shape->size > external->bytes - shape->offset)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = map(context, external, shape, pointer);
    pthread_mutex_unlock(&memory_lock);
    return result;
}
