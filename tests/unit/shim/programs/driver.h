/* The driver by its file, as programs open it that are not linked with it. */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>
#include <stdbool.h>

#include "base/cuda_api.h"
#include "check.h"

/* Of functions that are not hooked, so not declared with the rest, those that several tests call. */
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                               size_t count, CUdeviceptr pointer);
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                             CUdeviceptr wish, unsigned long long flags);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);

static void *driver;

/* Where lookups in the driver are not hooked, the wrappers are found as linked programs find them. */
static inline void *look_up(const char *symbol) {
    void *function = getenv("SOAK_LINKED") ? dlsym(RTLD_DEFAULT, symbol) : NULL;
    if (!function) function = dlsym(driver, symbol);
    if (!function) fprintf(stderr, "no %s\n", symbol);
    CHECK(function);
    return function;
}

#define CALL(symbol, ...) ((__typeof__(&symbol))look_up(#symbol))(__VA_ARGS__)
#define DO(symbol, ...) CHECK_IS(CALL(symbol, __VA_ARGS__), CUDA_SUCCESS)

static inline void open_driver(void) {
    CHECK((driver = dlopen("libcuda.so.1", RTLD_LAZY)));
}

/* True when it was granted; a refusal is fine. */
static inline bool granted(CUresult result) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
    CHECK_IS(result, CUDA_SUCCESS);
    return true;
}

#endif
