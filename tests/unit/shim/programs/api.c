#include "api.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"

struct api api;

enum { ANY, PER_THREAD };

struct wanted {
    const char *library, *symbol, *base;
    int version, stream;
    void **function;
};

static const struct wanted wanted[] = {
#define HOOK(library, symbol, base, version, stream) \
    {#library, #symbol, base, version, stream, (void **)&api.symbol},
#include "lookup/hooks_generated.def"
};

static void *handle_of(const struct wanted *want) {
    if (!strcmp(want->library, "LIBC")) return dlopen("libc.so.6", RTLD_LAZY);
    return dlopen(strcmp(want->library, "NVML") ? "libcuda.so.1" : "libnvidia-ml.so.1", RTLD_LAZY);
}

static void *by_proc(const struct wanted *want) {
    void *function = NULL;
    uint64_t flags = want->stream == PER_THREAD ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    __typeof__(&cuGetProcAddress_v2) get = dlsym(handle_of(want), "cuGetProcAddress_v2");
    CHECK(get(want->base, &function, want->version, flags, NULL) == CUDA_SUCCESS);
    return function;
}

static void *by_proc_v1(const struct wanted *want) {
    void *function = NULL;
    uint64_t flags = want->stream == PER_THREAD ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    __typeof__(&cuGetProcAddress) get = dlsym(handle_of(want), "cuGetProcAddress");
    CHECK(get(want->base, &function, want->version, flags) == CUDA_SUCCESS);
    return function;
}

static void *by_dlsym(const struct wanted *want) {
    return dlsym(handle_of(want), want->symbol);
}

static void *by_dlvsym(const struct wanted *want) {
    return strcmp(want->library, "CUDA") ? by_dlsym(want)
                                         : dlvsym(handle_of(want), want->symbol, "FAKE_1");
}

static void *by_default(const struct wanted *want) {
    return dlsym(RTLD_DEFAULT, want->symbol);
}

static void *by_next(const struct wanted *want) {
    return dlsym(RTLD_NEXT, want->symbol);
}

/* A dlsym that was itself looked up. */
static void *by_found_dlsym(const struct wanted *want) {
    __typeof__(&dlsym) found = dlsym(RTLD_NEXT, "dlsym");
    return found(handle_of(want), want->symbol);
}

typedef void *lookup(const struct wanted *want);

static const struct {
    const char *name;
    lookup *lookup;
} ways[] = {
    {"dlsym", by_dlsym}, {"dlvsym", by_dlvsym}, {"default", by_default},
    {"next", by_next},   {"proc", by_proc},     {"proc_v1", by_proc_v1},
    {"found_dlsym", by_found_dlsym},
};

static lookup *lookup_of(const char *way) {
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!strcmp(ways[i].name, way)) return ways[i].lookup;
    return NULL;
}

void api_load(const char *way) {
    if (getenv("API_WAY")) way = getenv("API_WAY"); /* sanitized builds hook no lookups */
#define HOOK(library, symbol, base, version, stream) api.symbol = symbol;
#include "lookup/hooks_generated.def"
    lookup *look_up = lookup_of(way);
    CHECK(look_up || !strcmp(way, "link"));
    for (size_t i = 0; look_up && i < sizeof wanted / sizeof *wanted; i++) {
        bool nameless = !*wanted[i].base && (look_up == by_proc || look_up == by_proc_v1);
        *wanted[i].function = nameless ? by_dlsym(&wanted[i]) : look_up(&wanted[i]);
        if (!*wanted[i].function) fprintf(stderr, "no %s\n", wanted[i].symbol);
        CHECK(*wanted[i].function);
    }
}

void api_use(CUdevice device) {
    CUcontext context;
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    CHECK_IS(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

void api_start(void) {
    CHECK_IS(api.cuInit(0), CUDA_SUCCESS);
    api_use(0);
}

struct mizar_usage *api_usage(void) {
    static struct mizar_usage *usage;
    char path[4096];
    if (usage) return usage;
    snprintf(path, sizeof path, "%s/usage", getenv("MIZAR_DIR"));
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    usage = mmap(NULL, MIZAR_USAGE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(usage != MAP_FAILED);
    return usage;
}

uint64_t api_used(unsigned card) {
    return api_usage()->cards[card].ledger.hi >> 21;
}
