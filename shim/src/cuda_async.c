/* Stream-ordered memory. Each entry has a twin for the per-thread default stream. */
#include "charge.h"
#include "resolve.h"

static CUresult undo(CUdeviceptr pointer) {
    return REAL(cuMemFree_v2)(pointer);
}

#define ALLOC_ASYNC(symbol)                                                             \
    EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUstream stream) {       \
        struct charge charge;                                                           \
        CUresult result = charge_stream(&charge, bytes, stream);                        \
        if (result == CUDA_SUCCESS) result = REAL(symbol)(pointer, bytes, stream);      \
        return charge_settle(&charge, result, pointer ? *pointer : 0, undo);            \
    }

#define ALLOC_FROM_POOL(symbol)                                                         \
    EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,       \
                           CUstream stream) {                                           \
        struct charge charge;                                                           \
        CUresult result = charge_stream(&charge, bytes, stream);                        \
        if (result == CUDA_SUCCESS) result = REAL(symbol)(pointer, bytes, pool, stream); \
        return charge_settle(&charge, result, pointer ? *pointer : 0, undo);            \
    }

#define FREE_ASYNC(symbol)                                                              \
    EXPORT CUresult symbol(CUdeviceptr pointer, CUstream stream) {                      \
        struct charge charge;                                                           \
        charge_lift(&charge, pointer);                                                  \
        return charge_finish(&charge, REAL(symbol)(pointer, stream), pointer);          \
    }

ALLOC_ASYNC(cuMemAllocAsync)
ALLOC_ASYNC(cuMemAllocAsync_ptsz)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz)
FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)
