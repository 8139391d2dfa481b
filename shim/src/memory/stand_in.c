#include "memory/stand_in.h"

#include "lookup/relax.h"

#define CU_MEM_ATTACH_GLOBAL 1

CUresult stand_in_allocate(struct allocation *allocation, CUdeviceptr *pointer, size_t bytes) {
    allocation->alloc.stand_in = true;
    return RELAXED(cuMemAllocManaged, pointer, bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult undo(uint64_t pointer) {
    return RELAXED(cuMemFree_v2, pointer);
}

CUresult stand_in_allocate_v1(struct allocation *allocation, CUdeviceptr_v1 *pointer, size_t bytes) {
    CUdeviceptr wide;
    CUresult result = stand_in_allocate(allocation, &wide, bytes);
    if (result != CUDA_SUCCESS) return result;
    *pointer = (CUdeviceptr_v1)wide;
    if (*pointer == wide) return CUDA_SUCCESS;
    allocation_free(allocation, bytes, wide, undo);
    return CUDA_ERROR_OUT_OF_MEMORY;
}
