/*
 * `lazy SEED USES`: on a card whose driver loads code when it is first used, takes and frees
 * memory, some of it by graphs that are launched or not, and uses that many functions in random order,
 * in ever new modules and libraries; some need larger stacks than others. A refusal is answered by
 * giving something back. Meanwhile the test checks how much memory the card holds. At the end, the program
 * prints how often a function was refused. It begins when it is sent an empty line.
 * `lazy SEED USES hide`: functions are loaded while graphs are charged but not launched, so that NVML shows no
 * memory beyond the account.
 */
#include <stdint.h>
#include <unistd.h>

#include "driver.h"

#define MIB ((uint64_t)1 << 20)

enum { MOST = 64, IMAGES = 16, LARGEST_KIB = 512, USUAL_STACK = 1024, LARGEST_STACK = 1280 };

static const char image[] = "\177ELF";
static struct {
    CUdeviceptr pointer;
    CUgraphExec exec; /* NULL: it is memory */
} held[MOST];
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

/* It is charged now, but takes memory only when it is launched. */
static bool take_graph(CUgraphExec *exec, uint64_t bytes) {
    CUgraph graph;
    CUgraphNode first, last;
    CUDA_MEM_ALLOC_NODE_PARAMS wish = {.pool.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                       .bytes = bytes};
    DO(cuGraphCreate, &graph, 0);
    DO(cuGraphAddMemAllocNode, &first, graph, NULL, 0, &wish);
    DO(cuGraphAddMemFreeNode, &last, graph, &first, 1, wish.pointer);
    bool made = granted(CALL(cuGraphInstantiateWithFlags, exec, graph, 0));
    DO(cuGraphDestroy, graph);
    if (!made) *exec = NULL;
    if (made && !any(3)) granted(CALL(cuGraphLaunch, *exec, NULL));
    return made;
}

static void take(void) {
    size_t left, total;
    DO(cuMemGetInfo_v2, &left, &total);
    uint64_t bytes = any(4) ? (1 + any(32)) * MIB : left; /* sometimes all there is */
    if (live == MOST || !bytes) return;
    held[live].exec = NULL;
    live += any(3) ? granted(CALL(cuMemAlloc_v2, &held[live].pointer, bytes))
                   : take_graph(&held[live].exec, bytes);
}

static void give_graph(CUgraphExec exec) {
    DO(cuCtxSynchronize, );
    DO(cuGraphExecDestroy, exec);
}

static void give(void) {
    if (!live) return unload();
    uint64_t which = any((uint64_t)live);
    if (held[which].exec) give_graph(held[which].exec);
    else DO(cuMemFree_v2, held[which].pointer);
    held[which] = held[--live];
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
    unsigned code = (unsigned)(1 + any(LARGEST_KIB));
    unsigned local = any(16) ? 0 : (unsigned)(USUAL_STACK + any(LARGEST_STACK - USUAL_STACK));
    snprintf(name, sizeof name, "f%u_local_%u_code_%uk", number++, local, code);
    if (any(2)) use_module(&modules[which], name);
    else use_library(&libraries[which], name);
}

static void step(void) {
    uint64_t chance = any(100);
    usleep((unsigned)any(2000)); /* now and then all processes pause */
    if (chance < 70) use();
    else if (chance < 85) take();
    else if (chance < 98) give();
    else unload();
}

/* Takes all memory that is free before the graph gets its memory, while it has it, and after it is gone. */
static void hide(void) {
    CUgraphExec graph;
    unsigned long before = used;
    while (!take_graph(&graph, (20 + any(40)) * MIB)) give();
    while (used < before + 40) use();
    for (int turn = 0; turn < 3; turn++) {
        usleep(300000); /* time for the agent to find what it can */
        if (turn == 1 && any(2)) granted(CALL(cuGraphLaunch, graph, NULL));
        if (turn == 2) give_graph(graph);
        for (int i = 0; i < MOST && live < MOST; i++) take();
    }
    usleep(300000);
    while (live) give();
    unload();
}

int main(int count, char **arguments) {
    CUcontext context;
    CHECK(count == 3 || count == 4);
    CHECK(getchar() == '\n');
    open_driver();
    for (unsigned long i = strtoul(arguments[1], NULL, 10); i; i--) any(2);
    DO(cuInit, 0);
    while (!granted(CALL(cuDevicePrimaryCtxRetain, &context, 0))) usleep(1000);
    DO(cuCtxSetCurrent, context);
    while (used < strtoul(arguments[2], NULL, 10)) (count == 3 ? step : hide)();
    printf("%lu\n", refused);
    return 0;
}
