#include "variable.h"

#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x4d4f4421 };

bool module_is_there(CUmodule module) {
    return module->context->alive && module->context_id == module->context->id;
}

static CUresult check(CUmodule module) {
    TRY(driver_ready());
    if (!module || module->magic != MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    return module_is_there(module) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* The default of drivers since CUDA 12.2. */
bool module_lazy(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return !mode || strcmp(mode, "EAGER") != 0;
}

static const struct sim_card *card_of(CUmodule module) {
    return &driver.sim.state->cards[module->context->card];
}

static CUresult load_all(CUmodule module) {
    return code_load(module->context, card_of(module)->module_bytes, &module->code);
}

CUresult module_new(CUcontext context, const void *data, bool lazy, CUmodule *module) {
    CUmodule made = calloc(1, sizeof *made);
    if (!made) abort();
    made->magic = MAGIC;
    made->context = context_whole(context);
    made->context_id = made->context->id;
    made->lazy = lazy;
    CUresult result = lazy ? CUDA_SUCCESS : load_all(made);
    if (result) {
        free(made);
        return result;
    }
    made->image = image_of(data, made, NULL);
    *module = made;
    return CUDA_SUCCESS;
}

void module_end(CUmodule module) {
    variable_end_module(module);
    code_unload(module->context, &module->code);
    module->magic = 0;
    image_end(&module->image);
    free(module);
}

API CUresult cuModuleLoadData(CUmodule *module, const void *data) {
    CUcontext context;
    TRY(context_current(&context));
    if (!module || !data) return CUDA_ERROR_INVALID_VALUE;
    return module_new(context, data, module_lazy(), module);
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
    char *data = path ? image_read(path) : NULL;
    if (!data) return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = cuModuleLoadData(module, data);
    free(data);
    return result;
}

API CUresult cuModuleUnload(CUmodule module) {
    TRY(check(module));
    if (module->library) return CUDA_ERROR_NOT_PERMITTED;
    module_end(module);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                                  const char *name) {
    TRY(check(module));
    return variable_find(module, name, pointer, bytes);
}

API CUresult cuModuleGetLoadingMode(int *mode) {
    enum { EAGER = 1, LAZY };
    TRY(driver_ready());
    *mode = module_lazy() ? LAZY : EAGER;
    return CUDA_SUCCESS;
}

/* ---- functions ------------------------------------------------------------------------------ */

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    TRY(check(module));
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    TRY(image_find(&module->image, name, function));
    return card_of(module)->handles_load ? function_load(*function, NULL) : CUDA_SUCCESS;
}

API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
    TRY(check(module));
    return image_count(&module->image, count);
}

/* Unlike other ways to get a handle, this one never loads code. */
API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module) {
    TRY(check(module));
    return image_list(&module->image, functions, count);
}

API CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
    TRY(function_check(function));
    if (!function->module) return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module;
    return CUDA_SUCCESS;
}

CUresult function_load(CUfunction function, CUcontext context) {
    TRY(function_check(function));
    if (function->library) {
        TRY(context ? context_check(context) : context_current(&context));
        TRY(library_function(function, context, &function));
    }
    CUmodule module = function->module;
    TRY(check(module));
    uint64_t bytes = function->code_bytes ? function->code_bytes : card_of(module)->function_bytes;
    return module->lazy ? code_load(module->context, bytes, &function->code) : CUDA_SUCCESS;
}

void function_unload(CUfunction function) {
    code_unload(function->module->context, &function->code);
}

API CUresult cuFuncLoad(CUfunction function) {
    return function_load(function, NULL);
}

API CUresult cuFuncIsLoaded(int *state, CUfunction function) {
    TRY(function_check(function));
    CUmodule module = function->module;
    if (!state || !module) return CUDA_ERROR_INVALID_VALUE;
    *state = code_is_loaded(module->context, module->lazy ? &function->code : &module->code);
    return CUDA_SUCCESS;
}
