/*
 * A program with two drivers: the usual one, and another file of that name, in which it looks up
 * symbols as well. `second FILE when`: before or after it uses the usual one.
 */
#include <dlfcn.h>
#include <string.h>

#include "check.h"

typedef int init_function(unsigned flags);

static void *open_other(const char *file) {
    void *other = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    CHECK(other);
    return dlsym(other, "cuMemAlloc_v2");
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    int first = !strcmp(arguments[2], "before");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *usual = dlsym(driver, "cuMemAlloc_v2");
    void *other = first ? open_other(arguments[1]) : NULL;
    CHECK_IS(((init_function *)dlsym(driver, "cuInit"))(0), 0);
    if (!first) other = open_other(arguments[1]);
    CHECK(usual && other && usual != other);
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
