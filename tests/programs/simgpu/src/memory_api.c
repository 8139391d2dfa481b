/* The entry points that allocate and free device memory outside stream order. */
#include "memory.h"
#include "stream.h"

static CUresult allocate(CUdeviceptr *pointer, enum memory_kind kind, uint64_t bytes) {
    CUcontext context;
    struct allocation *made;
    TRY(context_current(&context));
    if (!pointer || !bytes) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = memory_new(context, kind, bytes, &made);
    if (!result) *pointer = made->base;
    pthread_mutex_unlock(&memory_lock);
    return result;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    TRY(capture_permits());
    return allocate(pointer, MEMORY_DEVICE, bytes);
}

/* Rows begin at multiples of 512 bytes, as on every card since Kepler. */
static CUresult allocate_rows(CUdeviceptr *pointer, enum memory_kind kind, size_t *pitch,
                              size_t width, size_t height, unsigned element) {
    TRY(driver_ready());
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    if (!width || !height) return CUDA_ERROR_INVALID_VALUE;
    size_t row = round_up(width, 512), bytes;
    if (row < width || __builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(allocate(pointer, kind, bytes));
    *pitch = row;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                unsigned element) {
    TRY(capture_permits());
    if (!pitch) return CUDA_ERROR_INVALID_VALUE;
    return allocate_rows(pointer, MEMORY_DEVICE, pitch, width, height, element);
}

API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    TRY(capture_permits());
    TRY(driver_ready());
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(pointer, MEMORY_MANAGED, bytes);
}

/* The context in which the pointer was allocated; NULL if it is not an allocation. */
static CUcontext context_of(CUdeviceptr pointer) {
    pthread_mutex_lock(&memory_lock);
    struct allocation *found = memory_find(pointer);
    bool right = found && found->base == pointer && found->kind != MEMORY_IMPORTED && !found->idle;
    CUcontext context = right ? found->context : NULL;
    pthread_mutex_unlock(&memory_lock);
    return context;
}

/* Like the real function, waits for all work that may still use the memory. */
API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    TRY(capture_permits());
    TRY(driver_ready());
    if (!pointer) return CUDA_SUCCESS;
    CUcontext context = context_of(pointer);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    TRY(context->fault);
    if (context->alive) TRY(engine_wait_context(context));
    pool_take_back(pointer);
    pool_trim_all();
    return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CUcontext context;
    TRY(context_current(&context));
    struct sim_usage usage = sim_card_usage(&driver.sim, context->card);
    if (free_bytes) *free_bytes = usage.free;
    if (total) *total = usage.total;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    TRY(driver_ready());
    pthread_mutex_lock(&memory_lock);
    struct allocation *found = memory_find(pointer);
    if (found && base) *base = found->base;
    if (found && bytes) *bytes = found->bytes;
    pthread_mutex_unlock(&memory_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- the 32-bit entry points of CUDA 2 ------------------------------------------------------- */

API CUresult cuMemAlloc(unsigned *pointer, unsigned bytes) {
    CUdeviceptr low;
    TRY(capture_permits());
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    TRY(allocate(&low, MEMORY_LOW, bytes));
    *pointer = (unsigned)low;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height,
                             unsigned element) {
    CUdeviceptr low;
    size_t row;
    TRY(capture_permits());
    if (!pointer || !pitch) return CUDA_ERROR_INVALID_VALUE;
    TRY(allocate_rows(&low, MEMORY_LOW, &row, width, height, element));
    *pointer = (unsigned)low;
    *pitch = (unsigned)row;
    return CUDA_SUCCESS;
}

API CUresult cuMemFree(unsigned pointer) {
    return cuMemFree_v2(pointer);
}

static unsigned saturated(size_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total) {
    size_t left, all;
    TRY(cuMemGetInfo_v2(&left, &all));
    if (free_bytes) *free_bytes = saturated(left);
    if (total) *total = saturated(all);
    return CUDA_SUCCESS;
}
