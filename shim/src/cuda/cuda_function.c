/* Calls that return or query functions and variables, for which drivers may load their code. */
#include "lookup/resolve.h"
#include "memory/first_use.h"
#include "memory/stacks.h"
#include "region/enter.h"

static CUresult begin(struct first_use *use, const void *owner, const char *name) {
    struct regions *regions;
    CUresult result = shim_enter(&regions);
    return result == CUDA_SUCCESS ? first_use_begin_named(use, regions, owner, name) : result;
}

#define USE(symbol, parameters, owner, name, arguments)      \
    EXPORT CUresult symbol parameters {                      \
        struct first_use use;                                      \
        CUresult result = begin(&use, owner, name);          \
        if (result != CUDA_SUCCESS) return result;           \
        return first_use_end(&use, REAL(symbol) arguments);       \
    }

USE(cuModuleGetGlobal, (CUdeviceptr_v1 *pointer, unsigned *bytes, CUmodule module, const char *name),
    module, name, (pointer, bytes, module, name))
USE(cuModuleGetGlobal_v2, (CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name),
    module, name, (pointer, bytes, module, name))
USE(cuLibraryGetGlobal, (CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name),
    library, name, (pointer, bytes, library, name))
USE(cuFuncLoad, (CUfunction function), function, "", (function))

/* ---- handles whose kind is remembered -------------------------------------------------------- */

static CUresult note(CUresult result, const void *handle, enum stacks_kind kind, const void *owner) {
    struct regions *regions = shim_known();
    if (result == CUDA_SUCCESS && regions) stacks_note(regions, handle, kind, owner);
    return result;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    struct first_use use;
    CUresult result = begin(&use, module, name);
    if (result != CUDA_SUCCESS) return result;
    result = first_use_end(&use, REAL(cuModuleGetFunction)(function, module, name));
    return note(result, function ? *function : NULL, STACKS_FUNCTION, module);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    struct first_use use;
    CUresult result = begin(&use, kernel, "");
    if (result != CUDA_SUCCESS) return result;
    result = first_use_end(&use, REAL(cuKernelGetFunction)(function, kernel));
    struct regions *regions = shim_known();
    const void *library = regions ? stacks_owner(regions, kernel) : NULL;
    return note(result, function ? *function : NULL, STACKS_FUNCTION, library ? library : kernel);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CUresult result = REAL(cuLibraryGetKernel)(kernel, library, name);
    return note(result, kernel ? *kernel : NULL, STACKS_KERNEL, library);
}

/* ---- queries for which functions are loaded -------------------------------------------------- */

USE(cuFuncGetAttribute, (int *value, int attribute, CUfunction function), function, "",
    (value, attribute, function))
USE(cuFuncSetAttribute, (CUfunction function, int attribute, int value), function, "",
    (function, attribute, value))
USE(cuOccupancyMaxActiveBlocksPerMultiprocessor,
    (int *blocks, CUfunction function, int threads, size_t shared_bytes), function, "",
    (blocks, function, threads, shared_bytes))
USE(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    (int *blocks, CUfunction function, int threads, size_t shared_bytes, unsigned flags), function,
    "", (blocks, function, threads, shared_bytes, flags))
USE(cuOccupancyMaxPotentialBlockSize,
    (int *grid, int *block, CUfunction function, CUoccupancyB2DSize size, size_t shared_bytes,
     int most),
    function, "", (grid, block, function, size, shared_bytes, most))
USE(cuOccupancyMaxPotentialBlockSizeWithFlags,
    (int *grid, int *block, CUfunction function, CUoccupancyB2DSize size, size_t shared_bytes,
     int most, unsigned flags),
    function, "", (grid, block, function, size, shared_bytes, most, flags))
