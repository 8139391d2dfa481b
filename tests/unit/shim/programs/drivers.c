/*
 * `drivers VERSION`: under a driver of that CUDA, lookups find what it has and nothing else, and a
 * program that keeps to that CUDA works and is limited. The limit is 64 MiB, its time is metered.
 * `drivers VERSION RESULT`: cuInit returns RESULT.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/cuda_api.h"
#include "check.h"

#define NEWEST 14000
#define FIRST_TO_ASK 11030 /* cuGetProcAddress is new in this one */

enum { ANY, PER_THREAD };

static const struct entry {
    const char *library, *symbol, *base;
    int version, stream;
} entries[] = {
#define HOOK(library, symbol, base, version, stream) {#library, #symbol, base, version, stream},
#include "lookup/hooks_generated.def"
};

static void *driver;

#define FIND(symbol) ((__typeof__(&symbol))dlsym(driver, #symbol))

static bool in_shim(void *function) {
    Dl_info info;
    return dladdr(function, &info) && strstr(info.dli_fname, "libmizar.so");
}

/* By the older call where the driver does not have the newer one. */
static void *ask(const char *base, int version, uint64_t flags) {
    void *function = NULL;
    __typeof__(&cuGetProcAddress_v2) get = FIND(cuGetProcAddress_v2);
    if (get) return get(base, &function, version, flags, NULL) ? NULL : function;
    return FIND(cuGetProcAddress)(base, &function, version, flags) ? NULL : function;
}

static bool is_base(const char *name) {
    size_t i = 0;
    while (i < sizeof entries / sizeof *entries && strcmp(entries[i].base, name)) i++;
    return i < sizeof entries / sizeof *entries;
}

static void check_entry(const struct entry *entry, int version) {
    void *found = dlsym(driver, entry->symbol);
    uint64_t flags = entry->stream == PER_THREAD ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                 : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    if (entry->version > version) CHECK(!found);
    if (entry->version > version) return;
    if (!in_shim(found)) fprintf(stderr, "%s\n", entry->symbol);
    CHECK(in_shim(found));
    if (version < FIRST_TO_ASK) return;
    CHECK(ask(entry->base, entry->version, flags) == found);
    if (!is_base(entry->symbol)) CHECK(ask(entry->symbol, entry->version, flags) == found);
}

/* Functions of a later CUDA than the shim knows: the driver's own. */
static void check_newer(int version) {
    void *quantum = ask("cuMemAllocQuantum", NEWEST, 0), *alloc = ask("cuMemAlloc", NEWEST, 0);
    CHECK(quantum == dlsym(driver, "cuMemAllocQuantum"));
    if (version < NEWEST) CHECK(!quantum && alloc == dlsym(driver, "cuMemAlloc_v2"));
    if (version < NEWEST) return;
    CHECK(quantum && !in_shim(quantum));
    CHECK(alloc == dlsym(driver, "cuMemAlloc_v3") && !in_shim(alloc));
    CHECK(ask("cuMemAlloc", 13050, 0) == dlsym(driver, "cuMemAlloc_v2"));
}

/* Memory is limited and time is charged, whatever the driver has for it. */
static void work(void) {
    CUcontext context;
    CUdeviceptr pointer;
    CHECK_IS(FIND(cuInit)(0), CUDA_SUCCESS);
    CHECK_IS(FIND(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    CHECK_IS(((CUresult(*)(CUcontext))dlsym(driver, "cuCtxSetCurrent"))(context), CUDA_SUCCESS);
    CHECK_IS(FIND(cuMemAlloc_v2)(&pointer, 65 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(FIND(cuMemAlloc_v2)(&pointer, 40 << 20), CUDA_SUCCESS);
    for (int i = 0; i < 50; i++) {
        CHECK_IS(FIND(cuLaunchKernel)((CUfunction)64, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 0);
        usleep(100);
    }
    CHECK_IS(FIND(cuCtxSynchronize)(), CUDA_SUCCESS);
    CHECK_IS(FIND(cuMemFree_v2)(pointer), CUDA_SUCCESS);
}

int main(int count, char **arguments) {
    CHECK(count >= 2);
    int version = atoi(arguments[1]);
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CHECK(driver);
    if (count > 2) {
        CHECK_IS(FIND(cuInit)(0), atoi(arguments[2]));
        return 0;
    }
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strcmp(entries[i].library, "CUDA")) check_entry(&entries[i], version);
    if (version >= FIRST_TO_ASK) check_newer(version);
    work();
    return 0;
}
