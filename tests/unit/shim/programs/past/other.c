/* Another preloaded library, ahead of the shim: it wraps dlsym and one of CUDA's functions. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

typedef void *dlsym_function(void *handle, const char *name);
typedef int alloc_function(unsigned long long *pointer, size_t bytes);

static dlsym_function *next_dlsym(void) {
    return (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", OLDEST_LIBC);
}

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
    alloc_function *next = (alloc_function *)next_dlsym()(RTLD_NEXT, "cuMemAlloc_v2");
    if (!next) next = (alloc_function *)next_dlsym()(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    fprintf(stderr, "other: %zu\n", bytes);
    return next(pointer, bytes);
}

void *dlsym(void *handle, const char *name) {
    return strcmp(name, "cuMemAlloc_v2") ? next_dlsym()(handle, name) : (void *)cuMemAlloc_v2;
}
