/* Modules and libraries: images that kernels come from. An image in PTX has the kernels that it
 * names; any other image has every kernel that it is asked for. */
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "function.h"

enum { MODULE_MAGIC = 0x4d4f4421, LIBRARY_MAGIC = 0x4c494221 };

struct image {
    char *ptx; /* a copy, or NULL for what is no text */
    CUfunction functions;
};

struct CUmod_st {
    uint32_t magic;
    CUcontext context;
    bool loaded; /* its code is on the card */
    uint64_t charged;
    struct image image;
};

struct CUlib_st {
    uint32_t magic;
    struct image image;
    CUmodule module; /* as which it is seen in the context that asked */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- images --------------------------------------------------------------------------------- */

static bool is_ptx(const char *data) {
    while (isspace((unsigned char)*data)) data++;
    return strncmp(data, "//", 2) == 0 || strncmp(data, ".version", 8) == 0;
}

static struct image image_of(const void *data) {
    return (struct image){.ptx = is_ptx(data) ? strdup(data) : NULL};
}

static void end_image(struct image *image) {
    for (CUfunction next, each = image->functions; each; each = next) {
        next = each->next;
        free(each);
    }
    free(image->ptx);
}

static bool has_entry(const struct image *image, const char *name) {
    size_t length = strlen(name);
    if (!image->ptx) return true;
    for (const char *at = image->ptx; (at = strstr(at, ".entry"));) {
        at += strlen(".entry");
        while (isspace((unsigned char)*at)) at++;
        if (strncmp(at, name, length) == 0 && !isalnum((unsigned char)at[length]) &&
            at[length] != '_')
            return true;
    }
    return false;
}

/* The same handle for the same name. */
static CUresult find(struct image *image, const char *name, CUfunction *function) {
    if (!name || !*name || !has_entry(image, name)) return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&lock);
    CUfunction found = image->functions;
    while (found && strcmp(found->name, name) != 0) found = found->next;
    if (!found && (found = function_new(name))) {
        found->next = image->functions;
        image->functions = found;
    }
    pthread_mutex_unlock(&lock);
    *function = found;
    return found ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The whole file with a zero after it, or NULL. */
static char *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    long bytes;
    if (!file) return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (bytes = ftell(file)) >= 0 &&
        (data = calloc(1, (size_t)bytes + 1))) {
        rewind(file);
        if (fread(data, 1, (size_t)bytes, file) != (size_t)bytes) data[0] = 0;
    }
    fclose(file);
    return data;
}

/* ---- modules -------------------------------------------------------------------------------- */

static CUresult check_module(CUmodule module) {
    TRY(driver_ready());
    return module && module->magic == MODULE_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Code comes to the card when a kernel of it is first asked for, unless the environment says otherwise. */
static bool is_lazy(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return !mode || strcmp(mode, "EAGER") != 0;
}

/* The caller holds the lock. */
static CUresult take_code(CUmodule module) {
    CUcontext context = module->context;
    uint64_t cost = driver.sim.state->cards[context->card].module_bytes;
    if (module->loaded || !context->alive) return CUDA_SUCCESS;
    if (!sim_take(&driver.sim, context->card, cost)) return CUDA_ERROR_OUT_OF_MEMORY;
    context->charged += cost; /* ends with the context, if not before */
    module->charged = cost;
    module->loaded = true;
    return CUDA_SUCCESS;
}

static CUresult load_code(CUmodule module) {
    pthread_mutex_lock(&lock);
    CUresult result = take_code(module);
    pthread_mutex_unlock(&lock);
    return result;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *data) {
    CUcontext context;
    TRY(context_current(&context));
    if (!module || !data) return CUDA_ERROR_INVALID_VALUE;
    CUmodule made = calloc(1, sizeof *made);
    if (!made) abort();
    *made = (struct CUmod_st){.magic = MODULE_MAGIC, .context = context_whole(context)};
    CUresult result = is_lazy() ? CUDA_SUCCESS : load_code(made);
    if (result) {
        free(made);
        return result;
    }
    made->image = image_of(data);
    *module = made;
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *data, unsigned count, int *options,
                                void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, data);
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *data) {
    return cuModuleLoadData(module, data);
}

API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    TRY(driver_ready());
    char *data = path ? read_file(path) : NULL;
    if (!data) return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = cuModuleLoadData(module, data);
    free(data);
    return result;
}

API CUresult cuModuleUnload(CUmodule module) {
    TRY(check_module(module));
    if (module->context->alive) {
        module->context->charged -= module->charged;
        sim_give(&driver.sim, module->context->card, module->charged);
    }
    module->magic = 0;
    end_image(&module->image);
    free(module);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    TRY(check_module(module));
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    TRY(find(&module->image, name, function));
    TRY(load_code(module));
    (*function)->module = module;
    return CUDA_SUCCESS;
}

/* Images have no variables here. */
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                                  const char *name) {
    (void)pointer, (void)bytes, (void)name;
    TRY(check_module(module));
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetLoadingMode(int *mode) {
    enum { EAGER = 1, LAZY };
    TRY(driver_ready());
    *mode = is_lazy() ? LAZY : EAGER;
    return CUDA_SUCCESS;
}

/* ---- libraries: modules without a context ---------------------------------------------------- */

static CUresult check_library(CUlibrary library) {
    TRY(driver_ready());
    return library && library->magic == LIBRARY_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *data, int *jit, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    TRY(driver_ready());
    if (!library || !data) return CUDA_ERROR_INVALID_VALUE;
    CUlibrary made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUlib_st){.magic = LIBRARY_MAGIC, .image = image_of(data)};
    *library = made;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit,
                                   void **jit_values, unsigned jit_count, int *options,
                                   void **values, unsigned count) {
    TRY(driver_ready());
    char *data = path ? read_file(path) : NULL;
    if (!data) return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result =
        cuLibraryLoadData(library, data, jit, jit_values, jit_count, options, values, count);
    free(data);
    return result;
}

API CUresult cuLibraryUnload(CUlibrary library) {
    TRY(check_library(library));
    if (library->module) cuModuleUnload(library->module);
    library->magic = 0;
    end_image(&library->image);
    free(library);
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    TRY(check_library(library));
    if (!kernel) return CUDA_ERROR_INVALID_VALUE;
    TRY(find(&library->image, name, kernel));
    (*kernel)->library = library;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    static const char nothing[] = "\177ELF";
    TRY(check_library(library));
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    if (!library->module) {
        const char *data = library->image.ptx ? library->image.ptx : nothing;
        TRY(cuModuleLoadData(&library->module, data));
    }
    *module = library->module;
    return CUDA_SUCCESS;
}

CUresult library_load(CUlibrary library) {
    CUmodule module;
    TRY(cuLibraryGetModule(&module, library));
    return load_code(module);
}
