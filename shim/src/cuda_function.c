/* Functions and variables that a program asks for, with which drivers may load their code. */
#include "charge.h"
#include "resolve.h"
#include "uses.h"

static CUresult begin(struct use *use, const void *work) {
    struct regions *regions;
    CUresult result = shim_enter(&regions);
    return result == CUDA_SUCCESS ? uses_begin(use, regions, work) : result;
}

#define USE(symbol, parameters, work, arguments)             \
    EXPORT CUresult symbol parameters {                      \
        struct use use;                                      \
        CUresult result = begin(&use, work);                 \
        if (result != CUDA_SUCCESS) return result;           \
        return uses_end(&use, REAL(symbol) arguments);       \
    }

USE(cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name),
    uses_named(module, name), (function, module, name))
USE(cuModuleGetGlobal, (CUdeviceptr_v1 *pointer, unsigned *bytes, CUmodule module, const char *name),
    uses_named(module, name), (pointer, bytes, module, name))
USE(cuModuleGetGlobal_v2, (CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name),
    uses_named(module, name), (pointer, bytes, module, name))
USE(cuLibraryGetGlobal, (CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name),
    uses_named(library, name), (pointer, bytes, library, name))
USE(cuKernelGetFunction, (CUfunction *function, CUkernel kernel), uses_named(kernel, ""),
    (function, kernel))
USE(cuFuncLoad, (CUfunction function), function, (function))
