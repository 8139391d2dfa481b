/*
 * A program that a preloaded library may not reach: static, or of another libc. Takes 65 MiB where
 * 64 are allowed and prints the CUDA result, or why there is no driver. `past FOLDER ELSEWHERE`
 * first moves the folder there.
 */
#include <dlfcn.h>
#include <stdio.h>

typedef int init_function(unsigned flags);
typedef int retain_function(void **context, int device);
typedef int set_function(void *context);
typedef int alloc_function(unsigned long long *pointer, unsigned long bytes);

int main(int count, char **arguments) {
    unsigned long long pointer;
    if (count > 2 && rename(arguments[1], arguments[2])) return 1;
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return puts("no driver"), 0;
    void *alloc = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"); /* if a library in the global scope has it */
    if (!alloc) alloc = dlsym(driver, "cuMemAlloc_v2");
    int result = ((init_function *)dlsym(driver, "cuInit"))(0);
    if (!result) result = ((retain_function *)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0);
    if (!result) result = ((set_function *)dlsym(driver, "cuCtxSetCurrent"))(context);
    if (!result) result = ((alloc_function *)alloc)(&pointer, 65 << 20);
    return printf("%d\n", result), 0;
}
