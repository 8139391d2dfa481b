/* A library that finds the driver as NVIDIA's static runtime does. */
#include <dlfcn.h>

#include "hidden.h"

static void *ask(void *driver, const char *name, int version) {
    __typeof__(&cuGetProcAddress_v2) get =
        (__typeof__(get))dlsym(driver, "cuGetProcAddress_v2");
    void *function = NULL;
    get(name, &function, version, 0, NULL);
    return function;
}

int hidden_take(size_t bytes) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return hidden_take_with((__typeof__(&cuInit))ask(driver, "cuInit", 2000),
                            (__typeof__(&cuDevicePrimaryCtxRetain))ask(
                                driver, "cuDevicePrimaryCtxRetain", 7000),
                            (__typeof__(&cuMemAlloc_v2))dlsym(driver, "cuMemAlloc_v2"), bytes);
}
