/* Device memory by cuMemAlloc, cuMemAllocPitch and cuMemAllocManaged, and its free. */
#include "lookup/relax.h"
#include "memory/allocation.h"
#include "memory/stand_in.h"

#define PITCH_UNIT UINT64_C(512) /* bytes; the pitch of present cards is a multiple of this */

static CUresult undo(uint64_t pointer) {
    return RELAXED(cuMemFree_v2, pointer);
}

static CUresult allocate(struct allocation *allocation, CUdeviceptr *pointer, size_t bytes) {
    CUresult result = REAL(cuMemAlloc_v2)(pointer, bytes);
    return stand_in_wanted(allocation, result) ? stand_in_allocate(allocation, pointer, bytes) : result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct allocation allocation;
    CUresult result = allocation_reserve_memory(&allocation, bytes);
    if (result == CUDA_SUCCESS) result = allocate(&allocation, pointer, bytes);
    return allocation_settle(&allocation, result, pointer ? *pointer : 0, undo);
}

static CUresult allocate_v1(struct allocation *allocation, CUdeviceptr_v1 *pointer, unsigned bytes) {
    CUresult result = REAL(cuMemAlloc)(pointer, bytes);
    return stand_in_wanted(allocation, result) ? stand_in_allocate_v1(allocation, pointer, bytes) : result;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes) {
    struct allocation allocation;
    CUresult result = allocation_reserve_memory(&allocation, bytes);
    if (result == CUDA_SUCCESS) result = allocate_v1(&allocation, pointer, bytes);
    return allocation_settle(&allocation, result, pointer ? *pointer : 0, undo);
}

/* Bytes of rows with that pitch. Saturates instead of wrapping. */
static uint64_t pitched(uint64_t width, uint64_t height) {
    uint64_t row = width > MIZAR_BYTES_MAX ? MIZAR_BYTES_MAX
                                           : (width + PITCH_UNIT - 1) / PITCH_UNIT * PITCH_UNIT;
    return height && row > MIZAR_BYTES_MAX / height ? MIZAR_BYTES_MAX + 1 : row * height;
}

static CUresult allocate_pitch(struct allocation *allocation, CUdeviceptr *pointer, size_t *pitch,
                               size_t width, size_t height, unsigned element) {
    CUresult result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (!stand_in_wanted(allocation, result)) return result;
    *pitch = pitched(width, 1);
    return stand_in_allocate(allocation, pointer, pitched(width, height));
}

/*
 * Changes the reservation to the true size, and frees the memory if the limit does not allow that.
 */
static CUresult correct(struct allocation *allocation, uint64_t bytes, CUdeviceptr pointer) {
    CUresult result = allocation_correct(allocation, bytes);
    if (result != CUDA_SUCCESS) allocation_free(allocation, bytes, pointer, undo);
    return result;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                   unsigned element) {
    struct allocation allocation;
    CUresult result = allocation_reserve_memory(&allocation, pitched(width, height));
    if (result == CUDA_SUCCESS)
        result = allocate_pitch(&allocation, pointer, pitch, width, height, element);
    if (result == CUDA_SUCCESS) result = correct(&allocation, (uint64_t)*pitch * height, *pointer);
    return allocation_settle(&allocation, result, pointer ? *pointer : 0, undo);
}

static CUresult allocate_pitch_v1(struct allocation *allocation, CUdeviceptr_v1 *pointer, unsigned *pitch,
                                  unsigned width, unsigned height, unsigned element) {
    CUresult result = REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    if (!stand_in_wanted(allocation, result)) return result;
    *pitch = (unsigned)pitched(width, 1);
    return stand_in_allocate_v1(allocation, pointer, pitched(width, height));
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width,
                                unsigned height, unsigned element) {
    struct allocation allocation;
    CUresult result = allocation_reserve_memory(&allocation, pitched(width, height));
    if (result == CUDA_SUCCESS)
        result = allocate_pitch_v1(&allocation, pointer, pitch, width, height, element);
    if (result == CUDA_SUCCESS) result = correct(&allocation, (uint64_t)*pitch * height, *pointer);
    return allocation_settle(&allocation, result, pointer ? *pointer : 0, undo);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    struct allocation allocation;
    CUresult result = allocation_reserve_memory(&allocation, bytes);
    if (result == CUDA_SUCCESS) result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    return allocation_settle(&allocation, result, pointer ? *pointer : 0, undo);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct allocation allocation;
    allocation_lift(&allocation, pointer);
    return allocation_finish_free(&allocation, REAL(cuMemFree_v2)(pointer), pointer);
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    struct allocation allocation;
    allocation_lift(&allocation, pointer);
    return allocation_finish_free(&allocation, REAL(cuMemFree)(pointer), pointer);
}
