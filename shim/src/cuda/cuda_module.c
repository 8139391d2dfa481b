/* Modules and libraries: code that is loaded into a context. */
#include "lookup/relax.h"
#include "memory/allocation.h"
#include "memory/first_use.h"
#include "memory/loads.h"

static CUresult unload_module(uint64_t key) {
    return RELAXED(cuModuleUnload, (CUmodule)(uintptr_t)(key ^ alloc_key(ALLOC_MODULE, NULL)));
}

static CUresult unload_library(uint64_t key) {
    return RELAXED(cuLibraryUnload, (CUlibrary)(uintptr_t)(key ^ alloc_key(ALLOC_LIBRARY, NULL)));
}

static CUresult end_module(struct load *load, CUresult result, const CUmodule *module) {
    return loads_end(load, result, result == CUDA_SUCCESS ? *module : NULL, unload_module);
}

static CUresult end_library(struct load *load, CUresult result, const CUlibrary *library) {
    return loads_end(load, result, result == CUDA_SUCCESS ? *library : NULL, unload_library);
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    struct load load;
    CUresult result = loads_begin(&load, ALLOC_MODULE, loads_file_bytes(path));
    if (result != CUDA_SUCCESS) return result;
    return end_module(&load, REAL(cuModuleLoad)(module, path), module);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    struct load load;
    CUresult result = loads_begin(&load, ALLOC_MODULE, loads_image_bytes(image));
    if (result != CUDA_SUCCESS) return result;
    return end_module(&load, REAL(cuModuleLoadData)(module, image), module);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                   int *options, void **values) {
    struct load load;
    CUresult result = loads_begin(&load, ALLOC_MODULE, loads_image_bytes(image));
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuModuleLoadDataEx)(module, image, count, options, values);
    return end_module(&load, result, module);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    struct load load;
    CUresult result = loads_begin(&load, ALLOC_MODULE, loads_image_bytes(image));
    if (result != CUDA_SUCCESS) return result;
    return end_module(&load, REAL(cuModuleLoadFatBinary)(module, image), module);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    struct allocation allocation;
    uint64_t key = alloc_key(ALLOC_MODULE, module);
    first_use_forget(module);
    allocation_lift(&allocation, module ? key : 0);
    return allocation_finish_free(&allocation, REAL(cuModuleUnload)(module), key);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values,
                                  unsigned jits, int *options, void **values, unsigned count) {
    struct load load;
    CUresult result = loads_begin(&load, ALLOC_LIBRARY, loads_image_bytes(code));
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuLibraryLoadData)(library, code, jit, jit_values, jits, options, values, count);
    return end_library(&load, result, library);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit,
                                      void **jit_values, unsigned jits, int *options,
                                      void **values, unsigned count) {
    struct load load;
    CUresult result = loads_begin(&load, ALLOC_LIBRARY, loads_file_bytes(path));
    if (result != CUDA_SUCCESS) return result;
    result =
        REAL(cuLibraryLoadFromFile)(library, path, jit, jit_values, jits, options, values, count);
    return end_library(&load, result, library);
}

/* The first call in a context loads the library there, where it stays. */
EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    struct load load;
    CUresult result = loads_begin(&load, ALLOC_LIBRARY, 0);
    if (result != CUDA_SUCCESS) return result;
    return loads_end(&load, REAL(cuLibraryGetModule)(module, library), library, NULL);
}

/* A library has a charge for each context into which it was loaded. */
EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    enum { CONTEXTS = 32 };
    struct allocation charges[CONTEXTS];
    uint64_t key = alloc_key(ALLOC_LIBRARY, library);
    int count = 0;
    first_use_forget(library);
    do allocation_lift(&charges[count], library ? key : 0);
    while (charges[count].reserved && ++count < CONTEXTS);
    CUresult result = REAL(cuLibraryUnload)(library);
    while (count) allocation_finish_free(&charges[--count], result, key);
    return result;
}
