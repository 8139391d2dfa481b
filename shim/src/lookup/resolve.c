#include "lookup/resolve.h"

#include <dlfcn.h>
#include <stdbool.h>

#include "lookup/symbols.h"

void *resolve_known[HOOK_COUNT];

static void *no_lookup(void) {
    return NULL;
}

static void *found_or_none(const char *name) {
    void *found = symbols_next(name);
    return found ? found : (void *)&no_lookup;
}

const struct resolve_libc *resolve_libc(void) {
    static struct resolve_libc libc;
    static bool ready; /* threads that run before it is set store the same values */
    if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) return &libc;
    __atomic_store_n((void **)&libc.dlsym, found_or_none("dlsym"), __ATOMIC_RELAXED);
    __atomic_store_n((void **)&libc.dlvsym, found_or_none("dlvsym"), __ATOMIC_RELAXED);
    __atomic_store_n((void **)&libc.dlopen, found_or_none("dlopen"), __ATOMIC_RELAXED);
    __atomic_store_n((void **)&libc.dlclose, found_or_none("dlclose"), __ATOMIC_RELAXED);
    __atomic_store_n((void **)&libc.dlmopen, found_or_none("dlmopen"), __ATOMIC_RELAXED);
    __atomic_store_n((void **)&libc.dlinfo, found_or_none("dlinfo"), __ATOMIC_RELAXED);
    __atomic_store_n((void **)&libc.dladdr1, found_or_none("dladdr1"), __ATOMIC_RELAXED);
    __atomic_store_n((void **)&libc.at_thread_exit, found_or_none("__cxa_thread_atexit_impl"),
                     __ATOMIC_RELAXED);
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
    return &libc;
}

void *resolve_library(unsigned library) {
    static const char *const names[LIBRARIES] = {
        [LIBRARY_CUDA] = "libcuda.so.1", [LIBRARY_NVML] = "libnvidia-ml.so.1"};
    static void *handles[LIBRARIES];
    void *handle = __atomic_load_n(&handles[library], __ATOMIC_ACQUIRE);
    if (handle || !names[library]) return handle;
    handle = resolve_libc()->dlopen(names[library], RTLD_LAZY | RTLD_NOLOAD);
    __atomic_store_n(&handles[library], handle, __ATOMIC_RELEASE);
    return handle;
}

static void *look_up(int hook) {
    if (hooks[hook].library == LIBRARY_LIBC) return symbols_next(hooks[hook].symbol);
    void *handle = resolve_library(hooks[hook].library);
    return handle ? resolve_libc()->dlsym(handle, hooks[hook].symbol) : NULL;
}

void *resolve_find(int hook) {
    void *function = __atomic_load_n(&resolve_known[hook], __ATOMIC_ACQUIRE);
    if (function) return function;
    function = look_up(hook);
    if (function) resolve_learn(hook, function);
    return __atomic_load_n(&resolve_known[hook], __ATOMIC_ACQUIRE); /* see elf_patch.h */
}

void resolve_learn(int hook, void *function) {
    void *none = NULL;
    __atomic_compare_exchange_n(&resolve_known[hook], &none, function, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
}

static CUresult missing_cuda(void) {
    return CUDA_ERROR_NOT_FOUND;
}

static nvmlReturn_t missing_nvml(void) {
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

void *resolve_or_error(int hook) {
    void *function = resolve_find(hook);
    if (function) return function;
    return hooks[hook].library == LIBRARY_NVML ? (void *)&missing_nvml : (void *)&missing_cuda;
}
