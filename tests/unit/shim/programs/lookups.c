/*
 * Lookups have the same results as without the shim. Not linked with the driver. `lookups shim` expects
 * wrappers where a driver is found, `lookups bare` the driver itself.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"

const char *who(void);
const char *ask_first(void);
const char *ask_second(void);
void *first_default(const char *name);
void *first_next(const char *name);

static const char *object_of(void *function) {
    Dl_info info;
    return dladdr(function, &info) ? info.dli_fname : "";
}

static void names_without_a_hook(void) {
    CHECK(!strcmp(who(), "first"));
    CHECK(!strcmp(ask_first(), "second"));
    CHECK(!strcmp(ask_second(), "nobody"));
    CHECK(dlsym(RTLD_DEFAULT, "who") == (void *)who);
    CHECK(dlsym(RTLD_NEXT, "who") == (void *)who);
    CHECK(!dlsym(RTLD_NEXT, "main"));
    CHECK(!dlsym(RTLD_DEFAULT, "no such name"));
    CHECK(dlerror() && !dlerror());
    CHECK(dlvsym(RTLD_DEFAULT, "memcpy", OLDEST_LIBC));
    CHECK(!dlvsym(RTLD_DEFAULT, "memcpy", "NO_SUCH"));
}

static void no_driver_yet(void) {
    CHECK(!dlsym(RTLD_DEFAULT, "cuInit"));
    CHECK(!dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
    CHECK(!dlsym(dlopen(NULL, RTLD_LAZY), "cuInit"));
    CHECK(!first_default("cuInit"));
    CHECK(dlerror() && !dlerror());
    CHECK(!first_next("cuInit"));
    CHECK(dlerror());
    CHECK(!dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo"));
    CHECK(dlerror());
}

static void own_function(void) {
    void *own = dlopen("own.so", RTLD_LAZY | RTLD_LOCAL);
    CHECK(own);
    int (*function)(void *, unsigned long) = (int (*)(void *, unsigned long))dlsym(own, "cuMemAlloc_v2");
    CHECK_IS(function(NULL, 0), 4711);
}

static void expect(void *found, const char *object) {
    CHECK(found);
    if (!strstr(object_of(found), object)) fprintf(stderr, "%s\n", object_of(found));
    CHECK(strstr(object_of(found), object));
}

static void plugin(const char *object) {
    void *library = dlopen("plugin.so", RTLD_LAZY | RTLD_LOCAL);
    CHECK(library);
    void *(*by_default)(const char *) = (void *(*)(const char *))dlsym(library, "plugin_default");
    void *(*by_next)(const char *) = (void *(*)(const char *))dlsym(library, "plugin_next");
    expect(by_default("cuInit"), object);
    expect(by_next("cuInit"), object);
    expect(by_default("cuDeviceGetCount"), "libcuda.so.1");
    expect(dlsym(library, "cuMemAlloc_v2"), object); /* in its dependency */
    CHECK(!by_default("cuNoSuchFunction"));
    CHECK(!dlsym(RTLD_DEFAULT, "cuInit")); /* still not for everybody */
    expect(dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuInit"), object);
    CHECK(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL));
    expect(dlsym(RTLD_DEFAULT, "cuInit"), object);
    expect(first_default("cuInit"), object);
    expect(first_next("cuInit"), object);
}

int main(int count, char **arguments) {
    bool shim = count > 1 && !strcmp(arguments[1], "shim");
    names_without_a_hook();
    no_driver_yet();
    own_function();
    plugin(shim ? "libmizar.so" : "libcuda.so.1");
    return 0;
}
