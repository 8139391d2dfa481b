/*
 * `lazy SEED USES`: on a card whose driver loads code when it is first used, takes and frees
 * memory and uses that many functions in random order, in ever new modules and libraries. A refusal
 * is answered by giving something back. Somebody else looks what the card holds meanwhile. In the
 * end says how often it was refused a function.
 */
#include <stdint.h>
#include <unistd.h>

#include "driver.h"

#define MIB ((uint64_t)1 << 20)

enum { MOST = 64, IMAGES = 16, LARGEST_KIB = 512 };

/* Not hooked, so not declared with the rest. */
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);

static const char image[] = "\177ELF";
static CUdeviceptr pointers[MOST];
static int live;
static CUmodule modules[IMAGES];
static CUlibrary libraries[IMAGES];
static unsigned long used, refused;

static uint64_t any(uint64_t below) {
    static uint64_t state;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % below;
}

static void unload(void) {
    CUmodule *module = &modules[any(IMAGES)];
    CUlibrary *library = &libraries[any(IMAGES)];
    DO(cuCtxSynchronize, );
    if (*module) DO(cuModuleUnload, *module);
    if (*library) DO(cuLibraryUnload, *library);
    *module = NULL;
    *library = NULL;
}

static void take(void) {
    size_t left, total;
    DO(cuMemGetInfo_v2, &left, &total);
    uint64_t bytes = any(4) ? (1 + any(32)) * MIB : left; /* sometimes all there is */
    if (live < MOST && bytes && granted(CALL(cuMemAlloc_v2, &pointers[live], bytes))) live++;
}

static void give(void) {
    if (!live) return unload();
    uint64_t which = any((uint64_t)live);
    DO(cuMemFree_v2, pointers[which]);
    pointers[which] = pointers[--live];
}

static void launch(CUfunction function) {
    bool done = granted(CALL(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    used += done;
    refused += !done;
    if (!done) give();
}

static void use_module(CUmodule *module, const char *name) {
    CUfunction function;
    if (!*module && !granted(CALL(cuModuleLoadData, module, image))) *module = NULL; /* undone */
    if (*module && granted(CALL(cuModuleGetFunction, &function, *module, name)))
        return launch(function);
    refused += *module != NULL;
    give();
}

static void use_library(CUlibrary *library, const char *name) {
    CUkernel kernel;
    if (!*library && !granted(CALL(cuLibraryLoadData, library, image, NULL, NULL, 0, NULL, NULL, 0)))
        *library = NULL; /* undone */
    if (!*library) return give();
    DO(cuLibraryGetKernel, &kernel, *library, name);
    launch((CUfunction)kernel);
}

static void use(void) {
    static unsigned number;
    char name[64];
    uint64_t which = any(IMAGES);
    snprintf(name, sizeof name, "f%u_code_%uk", number++, (unsigned)(1 + any(LARGEST_KIB)));
    if (any(2)) use_module(&modules[which], name);
    else use_library(&libraries[which], name);
}

static void step(void) {
    uint64_t chance = any(100);
    usleep((unsigned)any(2000)); /* now and then nobody moves */
    if (chance < 70) use();
    else if (chance < 85) take();
    else if (chance < 98) give();
    else unload();
}

int main(int count, char **arguments) {
    CUcontext context;
    CHECK(count == 3);
    open_driver();
    for (unsigned long i = strtoul(arguments[1], NULL, 10); i; i--) any(2);
    DO(cuInit, 0);
    while (!granted(CALL(cuDevicePrimaryCtxRetain, &context, 0))) usleep(1000);
    DO(cuCtxSetCurrent, context);
    while (used < strtoul(arguments[2], NULL, 10)) step();
    printf("%lu\n", refused);
    return 0;
}
