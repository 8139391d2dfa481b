#include "memory/stacks.h"

#include "base/handle_set.h"
#include "lookup/relax.h"
#include "memory/contexts.h"
#include "memory/pages.h"

#define USUAL 1024 /* bytes of each stack in a new context */

/* Handles are even, so the lowest bit can hold the kind. */
static uint64_t key_of(const void *handle, enum stacks_kind kind) {
    return (uint64_t)(uintptr_t)handle | (kind == STACKS_KERNEL);
}

static bool is(struct regions *regions, const void *handle, enum stacks_kind kind) {
    return handle_set_has(&regions->process->kinds, key_of(handle, kind));
}

void stacks_note(struct regions *regions, const void *handle, enum stacks_kind kind,
                 const void *owner) {
    enum stacks_kind other = kind == STACKS_KERNEL ? STACKS_FUNCTION : STACKS_KERNEL;
    handle_set_remove(&regions->process->kinds, key_of(handle, other));
    if (!is(regions, handle, kind)) stacks_new_handle(handle);
    handle_set_add(&regions->process->kinds, key_of(handle, kind), owner);
}

void stacks_forget(struct regions *regions, const void *handle) {
    handle_set_remove(&regions->process->kinds, key_of(handle, STACKS_FUNCTION));
    handle_set_remove(&regions->process->kinds, key_of(handle, STACKS_KERNEL));
}

const void *stacks_owner(struct regions *regions, const void *handle) {
    const void *owner = handle_set_owner(&regions->process->kinds, key_of(handle, STACKS_FUNCTION));
    return owner ? owner : handle_set_owner(&regions->process->kinds, key_of(handle, STACKS_KERNEL));
}

static CUresult ask(struct regions *regions, const void *work, int *bytes) {
    CUdevice device;
    if (is(regions, work, STACKS_FUNCTION))
        return RELAXED(cuFuncGetAttribute, bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, (CUfunction)work);
    CUresult result = REAL(cuCtxGetDevice)(&device);
    if (result != CUDA_SUCCESS || !is(regions, work, STACKS_KERNEL)) return CUDA_ERROR_INVALID_VALUE;
    return RELAXED(cuKernelGetAttribute, bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, (CUkernel)work,
                   device);
}

uint64_t stacks_wanted(struct regions *regions, const void *work) {
    int bytes = 0;
    CUresult result = ask(regions, work, &bytes);
    return result == CUDA_SUCCESS && bytes > USUAL ? (uint64_t)bytes : 0;
}

uint64_t stacks_bytes(CUdevice device, uint64_t each) {
    int processors = 0, threads = 0;
    uint64_t more = each > USUAL ? each - USUAL : 0;
    if (!more) return 0;
    REAL(cuDeviceGetAttribute)(&processors, CU_MULTIPROCESSOR_COUNT, device);
    REAL(cuDeviceGetAttribute)(&threads, CU_MAX_THREADS_PER_MULTIPROCESSOR, device);
    uint64_t count = (uint64_t)processors * (uint64_t)threads;
    if (count && more > MIZAR_BYTES_MAX / count) return MIZAR_BYTES_MAX + 1;
    return pages_whole(more * count);
}

bool stacks_reserve(struct regions *regions, uint64_t each) {
    CUdevice device;
    if (!each || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return true;
    return contexts_need_stacks(regions, device, stacks_bytes(device, each));
}
