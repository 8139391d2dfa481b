/*
 * Libraries that a preloaded one does not reach by itself: `hidden LIBRARY HOW` opens it in one of
 * the ways below and takes memory in it. The limit is 64 MiB.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cuda_api.h"
#include "check.h"

#define MIB ((size_t)1 << 20)

typedef int take_function(size_t bytes);

static void *deep(const char *path) {
    return dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
}

static void *deep_now(const char *path) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
}

/* Maps memory until the next mapping is below the function's library. */
static void fill_holes_after(void *function) {
    Dl_info info;
    CHECK(dladdr(function, &info));
    for (int i = 0; i < 100000; i++) {
        void *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (hole == MAP_FAILED || hole < info.dli_fbase) return;
    }
    CHECK(!"there is always another hole");
}

/* The driver is known to the program already, and stays known. */
static void *deep_late(const char *path) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *init = dlsym(driver, "cuInit");
    fill_holes_after(init);
    void *library = deep_now(path);
    CHECK(dlsym(driver, "cuInit") == init);
    CHECK(dlsym(RTLD_DEFAULT, "cuInit") == init);
    CHECK(dlvsym(library, "dlsym", OLDEST_LIBC) == (void *)dlsym);
    CUdeviceptr pointer;
    __typeof__(&cuMemAlloc_v2) take = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    CHECK(take(&pointer, MIB) != CUDA_SUCCESS); /* before cuInit */
    return library;
}

static void *space(const char *path) {
    return dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL);
}

static void *space_deep(const char *path) {
    return dlmopen(LM_ID_NEWLM, path, RTLD_LAZY | RTLD_DEEPBIND);
}

/* Two libraries in one namespace, and a second namespace. */
static void *spaces(const char *path) {
    Lmid_t where;
    CHECK(space(path));
    void *first = dlmopen(LM_ID_NEWLM, "own.so", RTLD_NOW);
    CHECK(first && dlinfo(first, RTLD_DI_LMID, &where) == 0);
    return dlmopen(where, path, RTLD_NOW);
}

/* Functions of the namespace's driver, looked up from outside, while there is another driver. */
static void *space_handle(const char *path) {
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
    void *library = space(path);
    CUdeviceptr pointer;
    CUcontext context;
    CHECK_IS(((__typeof__(&cuInit))dlsym(library, "cuInit"))(0), CUDA_SUCCESS);
    CHECK_IS(((__typeof__(&cuDevicePrimaryCtxRetain))dlsym(library, "cuDevicePrimaryCtxRetain"))(
                 &context, 0), CUDA_SUCCESS);
    CHECK_IS(((CUresult(*)(CUcontext))dlsym(library, "cuCtxSetCurrent"))(context), CUDA_SUCCESS);
    CHECK_IS(((__typeof__(&cuMemAlloc_v2))dlsym(library, "cuMemAlloc_v2"))(&pointer, 65 * MIB),
             CUDA_ERROR_OUT_OF_MEMORY);
    return library;
}

static void *driver;

static void *look_up(void *unused) {
    (void)unused;
    for (int i = 0; i < 1000; i++) {
        Dl_info info;
        CHECK(dladdr(dlsym(driver, i % 2 ? "cuInit" : "cuMemAlloc_v2"), &info));
        CHECK(strstr(info.dli_fname, "libmizar.so"));
    }
    return NULL;
}

static void *open_deep(void *path) {
    return deep(path);
}

/* Opened by two threads for the first time, while others look things up. */
static void *deep_storm(const char *path) {
    pthread_t threads[4];
    void *library;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&threads[i], NULL, i < 2 ? look_up : open_deep, (void *)path));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], &library);
    return library;
}

static const struct {
    const char *name;
    void *(*open)(const char *path);
} ways[] = {
    {"deep", deep},   {"deep_now", deep_now},     {"deep_late", deep_late},
    {"space", space}, {"space_deep", space_deep}, {"spaces", spaces},
    {"space_handle", space_handle}, {"deep_storm", deep_storm},
};

int main(int count, char **arguments) {
    CHECK_IS(count, 3);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].name, arguments[2])) continue;
        void *library = ways[i].open(arguments[1]);
        if (!library) fprintf(stderr, "%s\n", dlerror());
        CHECK(library);
        take_function *take = (take_function *)dlsym(library, "hidden_take");
        CHECK_IS(take(65 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_IS(take(40 * MIB), CUDA_SUCCESS);
        CHECK_IS(take(40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        return 0;
    }
    return 1;
}
