#include <pthread.h>
#include <stdlib.h>

#include "variable.h"

enum { MAGIC = 0x4c494221 };

struct CUlib_st {
    uint32_t magic;
    bool lazy;
    struct image image;
    CUmodule modules; /* its modules, one for each context that has used it */
    CUlibrary next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUlibrary all;

static CUresult check(CUlibrary library) {
    TRY(driver_ready());
    return library && library->magic == MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- in a context ---------------------------------------------------------------------------- */

/* The caller holds the lock. */
static CUresult find_or_make(CUlibrary library, CUcontext context, CUmodule *module) {
    for (*module = library->modules; *module; *module = (*module)->next)
        if ((*module)->context == context && module_is_there(*module)) return CUDA_SUCCESS;
    TRY(module_new(context, image_data(&library->image), library->lazy, module));
    (*module)->library = library;
    (*module)->next = library->modules;
    library->modules = *module;
    return CUDA_SUCCESS;
}

static CUresult module_in(CUlibrary library, CUcontext context, CUmodule *module) {
    pthread_mutex_lock(&lock);
    CUresult result = find_or_make(library, context_whole(context), module);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult library_function(CUkernel kernel, CUcontext context, CUfunction *function) {
    CUmodule module;
    TRY(module_in(kernel->library, context, &module));
    return image_find(&module->image, kernel->name, function);
}

CUresult library_enter_context(CUcontext context) {
    CUresult result = CUDA_SUCCESS;
    CUmodule module;
    pthread_mutex_lock(&lock);
    for (CUlibrary each = all; each && !result; each = each->next)
        if (!each->lazy) result = find_or_make(each, context, &module);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- loading and unloading ------------------------------------------------------------------- */

static CUlibrary add(const void *data) {
    CUlibrary made = calloc(1, sizeof *made);
    if (!made) abort();
    made->magic = MAGIC;
    made->lazy = module_lazy();
    made->image = image_of(data, NULL, made);
    pthread_mutex_lock(&lock);
    made->next = all;
    all = made;
    pthread_mutex_unlock(&lock);
    return made;
}

static void take_out(CUlibrary library) {
    CUlibrary *link = &all;
    pthread_mutex_lock(&lock);
    while (*link != library) link = &(*link)->next;
    *link = library->next;
    pthread_mutex_unlock(&lock);
}

static void end(CUlibrary library) {
    take_out(library);
    for (CUmodule next, each = library->modules; each; each = next) {
        next = each->next;
        module_end(each);
    }
    library->magic = 0;
    image_end(&library->image);
    free(library);
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *data, int *jit, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    TRY(driver_ready());
    if (!library || !data) return CUDA_ERROR_INVALID_VALUE;
    CUlibrary made = add(data);
    CUresult result = made->lazy ? CUDA_SUCCESS : context_each(library_enter_context);
    if (result) end(made);
    else *library = made;
    return result;
}

API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit,
                                   void **jit_values, unsigned jit_count, int *options,
                                   void **values, unsigned count) {
    TRY(driver_ready());
    char *data = path ? image_read(path) : NULL;
    if (!data) return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result =
        cuLibraryLoadData(library, data, jit, jit_values, jit_count, options, values, count);
    free(data);
    return result;
}

API CUresult cuLibraryUnload(CUlibrary library) {
    TRY(check(library));
    end(library);
    return CUDA_SUCCESS;
}

/* ---- kernels --------------------------------------------------------------------------------- */

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    TRY(check(library));
    return kernel ? image_find(&library->image, name, kernel) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
    TRY(check(library));
    return image_count(&library->image, count);
}

API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    TRY(check(library));
    return image_list(&library->image, kernels, count);
}

API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    CUcontext context;
    TRY(check(library));
    TRY(context_current(&context));
    return module ? module_in(library, context, module) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                                const char *name) {
    CUmodule module;
    TRY(cuLibraryGetModule(&module, library));
    return variable_find(module, name, pointer, bytes);
}

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUmodule module;
    TRY(function_check(kernel));
    if (!kernel->library) return CUDA_ERROR_INVALID_HANDLE;
    TRY(cuLibraryGetModule(&module, kernel->library));
    return cuModuleGetFunction(function, module, kernel->name);
}

API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
    TRY(function_check(kernel));
    *library = kernel->library;
    return CUDA_SUCCESS;
}
