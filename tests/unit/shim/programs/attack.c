/*
 * Ways to get more than is allowed, one by one: `attack NAME`, `attack list`. The test checks
 * meanwhile that the card never holds more than the limit of 1 GiB; a refusal is fine, every other
 * error ends the program. Afterwards the whole limit must still be available.
 */
#include <string.h>
#include <time.h>

#include "driver.h"

#define MIB ((uint64_t)1 << 20)
#define PAGE (2 * MIB)
#define LIMIT (1024 * MIB)
#define MOST (900 * MIB) /* what is allowed beside contexts and code */
#define LARGE (600 * MIB)

/* Not hooked, so not declared with the rest. */
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
CUresult cuGraphClone(CUgraph *clone, CUgraph graph);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                  size_t count, CUgraph child);

static CUcontext primary;
static CUstream stream;

static bool take(CUdeviceptr *pointer, uint64_t bytes) {
    return granted(CALL(cuMemAlloc_v2, pointer, bytes));
}

static void give(CUdeviceptr pointer) {
    DO(cuMemFree_v2, pointer);
}

static bool may_go_on; /* what keeps the stream busy */

static void wait_for_all(void) {
    __atomic_store_n(&may_go_on, true, __ATOMIC_RELEASE);
    DO(cuCtxSynchronize);
}

/*
 * The agent's last figure may be too high until it has queried NVML three times while the process is idle, and
 * a call that is refused because of it does not wait. So the call is repeated for up to a minute.
 */
enum { MOMENTS = 3000 };

static void wait_a_moment(int *left) {
    const struct timespec moment = {0, 20000000};
    CHECK((*left)--);
    nanosleep(&moment, NULL);
}

/* ---- frees that wait behind work ----------------------------------------------------------------- */

static void wait_to_go_on(void *unused) {
    const struct timespec moment = {0, 1000000};
    (void)unused;
    while (!__atomic_load_n(&may_go_on, __ATOMIC_ACQUIRE)) nanosleep(&moment, NULL);
}

/* Work launched into the stream from here on is blocked until wait_for_all(). */
static void keep_busy(void) {
    __atomic_store_n(&may_go_on, false, __ATOMIC_RELEASE);
    DO(cuLaunchHostFunc, stream, wait_to_go_on, NULL);
}

static void free_behind_work(CUresult (*allocate)(CUdeviceptr *pointer)) {
    CUdeviceptr pointer, more;
    CHECK(granted(allocate(&pointer)));
    keep_busy();
    DO(cuMemFreeAsync, pointer, stream);
    CHECK(!take(&more, LARGE));
    wait_for_all();
    CHECK(take(&more, LARGE));
    give(more);
}

static CUresult plain(CUdeviceptr *pointer) {
    return CALL(cuMemAlloc_v2, pointer, LARGE);
}
static CUresult pitched(CUdeviceptr *pointer) {
    size_t pitch;
    return CALL(cuMemAllocPitch_v2, pointer, &pitch, MIB, LARGE / MIB, 4);
}
static CUresult pooled(CUdeviceptr *pointer) {
    return CALL(cuMemAllocAsync, pointer, LARGE, stream);
}

static void plain_behind_work(void) {
    free_behind_work(plain);
}
static void pitched_behind_work(void) {
    free_behind_work(pitched);
}
static void pooled_behind_work(void) {
    free_behind_work(pooled);
}

/* Destroys the stream's context while work waits in it. */
static void context_behind_work(void) {
    CUcontext context;
    CUstream before = stream;
    CUdeviceptr pointer;
    DO(cuCtxCreate_v2, &context, 0, 0);
    DO(cuStreamCreate, &stream, 1);
    CHECK(take(&pointer, LARGE));
    keep_busy();
    DO(cuMemFreeAsync, pointer, stream);
    __atomic_store_n(&may_go_on, true, __ATOMIC_RELEASE); /* the driver may wait for it */
    DO(cuCtxDestroy_v2, context);
    stream = before;
    DO(cuCtxSetCurrent, primary);
}

/* ---- small arrays -------------------------------------------------------------------------------- */

enum { ARRAYS = 40000 };
static CUarray arrays[ARRAYS];

static unsigned take_arrays(unsigned from, unsigned end, uint64_t bytes) {
    CUDA_ARRAY_DESCRIPTOR shape = {512, bytes / 512, 0x01, 1};
    unsigned count = from;
    while (count < end && granted(CALL(cuArrayCreate_v2, &arrays[count], &shape))) count++;
    return count;
}

static void give_arrays(unsigned from, unsigned to, unsigned keep_each) {
    for (unsigned i = from; i < to; i++)
        if (arrays[i] && (!keep_each || i % keep_each)) {
            DO(cuArrayDestroy, arrays[i]);
            arrays[i] = NULL;
        }
}

/* Pages that are nearly empty cannot be given back, so they count. */
static void crumbs(void) {
    CUdeviceptr pointers[600];
    unsigned count = take_arrays(0, ARRAYS, 64 << 10), taken = 0;
    CHECK(count > 7000);
    give_arrays(0, count, 31);
    while (taken < 600 && take(&pointers[taken], PAGE)) taken++;
    while (taken) give(pointers[--taken]);
    give_arrays(0, count, 0);
}

/* Freed arrays of one size leave no room for arrays of another size. */
static void crumbs_of_many_sizes(void) {
    enum { EACH = 3000 };
    unsigned count = 0;
    for (uint64_t bytes = 512; bytes < MIB; bytes = bytes * 2 + 512) {
        unsigned end = take_arrays(count, count + EACH, bytes);
        give_arrays(count, end, 7);
        count = end;
    }
    give_arrays(0, count, 0);
}

/* An array of 1 MiB has a page of its own. */
static void arrays_of_a_page(void) {
    unsigned count = take_arrays(0, LIMIT / MIB, MIB);
    CHECK(count < LIMIT / PAGE);
    give_arrays(0, count, 0);
}

/* The last allocation in a page keeps the page charged. */
static void crumbs_between(void (*take_more)(unsigned count), void (*give_more)(unsigned count)) {
    enum { PAGES = 200 };
    CUdeviceptr more;
    for (unsigned i = 0; i < PAGES; i++) {
        take_more(i);
        CHECK(take_arrays(i, i + 1, 64 << 10) == i + 1);
    }
    for (unsigned i = 0; i < PAGES; i++) give_more(i);
    CHECK(!take(&more, LARGE));
    give_arrays(0, PAGES, 0);
}

enum { BESIDE = 2, BESIDE_BYTES = 960 << 10 };

static CUdeviceptr beside[ARRAYS];

static void take_pointers(unsigned at) {
    for (unsigned i = 0; i < BESIDE; i++) CHECK(take(&beside[at * BESIDE + i], BESIDE_BYTES));
}
static void give_pointers(unsigned at) {
    for (unsigned i = 0; i < BESIDE; i++) give(beside[at * BESIDE + i]);
}
static void crumbs_between_pointers(void) {
    crumbs_between(take_pointers, give_pointers);
}

static void take_large(unsigned at) {
    unsigned from = ARRAYS / 2 + at * BESIDE;
    CHECK(take_arrays(from, from + BESIDE, BESIDE_BYTES) == from + BESIDE);
}
static void give_large(unsigned at) {
    unsigned from = ARRAYS / 2 + at * BESIDE;
    give_arrays(from, from + BESIDE, 0);
}
static void crumbs_between_arrays(void) {
    crumbs_between(take_large, give_large);
}

/* ---- code ---------------------------------------------------------------------------------------- */

static const char image[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                            ".visible .entry nothing() { ret; }\n";

enum { MODULES = 2000 };

static void modules(void) {
    static CUmodule loaded[MODULES];
    unsigned count = 0;
    while (count < MODULES && granted(CALL(cuModuleLoadData, &loaded[count], image))) count++;
    CHECK(count < MODULES);
    while (count) DO(cuModuleUnload, loaded[--count]);
}

static void libraries(void) {
    static CUlibrary loaded[MODULES];
    CUmodule module;
    unsigned count = 0;
    bool fits = true;
    while (fits && count < MODULES) {
        fits = granted(CALL(cuLibraryLoadData, &loaded[count], image, NULL, NULL, 0, NULL, NULL, 0));
        if (fits) fits = granted(CALL(cuLibraryGetModule, &module, loaded[count++]));
    }
    CHECK(!fits);
    while (count) DO(cuLibraryUnload, loaded[--count]);
}

/* Code that was loaded into a context is freed with it. */
static void modules_of_a_context(void) {
    CUcontext context;
    CUmodule module;
    unsigned count = 0;
    DO(cuCtxCreate_v2, &context, 0, 0);
    while (count < MODULES && granted(CALL(cuModuleLoadData, &module, image))) count++;
    CHECK(count < MODULES);
    DO(cuCtxDestroy_v2, context);
    DO(cuCtxSetCurrent, primary);
}

/* ---- graphs -------------------------------------------------------------------------------------- */

typedef CUresult instantiate(CUgraphExec *exec, CUgraph graph);

static CUresult instantiate_v1(CUgraphExec *exec, CUgraph graph) {
    return CALL(cuGraphInstantiate, exec, graph, NULL, NULL, 0);
}
static CUresult instantiate_v2(CUgraphExec *exec, CUgraph graph) {
    return CALL(cuGraphInstantiate_v2, exec, graph, NULL, NULL, 0);
}
static CUresult instantiate_flags(CUgraphExec *exec, CUgraph graph) {
    return CALL(cuGraphInstantiateWithFlags, exec, graph, 0);
}
static CUresult instantiate_params(CUgraphExec *exec, CUgraph graph) {
    uint64_t params[8] = {0};
    return CALL(cuGraphInstantiateWithParams, exec, graph, params);
}
static CUresult instantiate_twin(CUgraphExec *exec, CUgraph graph) {
    uint64_t params[8] = {0};
    return CALL(cuGraphInstantiateWithParams_ptsz, exec, graph, params);
}

static instantiate *const instantiations[] = {instantiate_v1, instantiate_v2, instantiate_flags,
                                              instantiate_params, instantiate_twin};
enum { WAYS = sizeof instantiations / sizeof *instantiations };

static CUgraph new_graph(uint64_t bytes, CUdeviceptr *pointer) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .pool = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytes = bytes};
    CUgraph graph;
    CUgraphNode node;
    DO(cuGraphCreate, &graph, 0);
    DO(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &params);
    *pointer = params.pointer;
    return graph;
}

/* Memory that a graph took stays allocated after the graph is destroyed. */
static void graphs_that_leave_memory(void) {
    CUdeviceptr pointers[WAYS];
    bool live[WAYS] = {false};
    for (int i = 0; i < WAYS; i++) {
        CUgraphExec exec;
        CUgraph graph = new_graph(400 * MIB, &pointers[i]);
        if (!granted(instantiations[i](&exec, graph))) continue;
        live[i] = granted(CALL(cuGraphLaunch, exec, stream));
        DO(cuStreamSynchronize, stream);
        DO(cuGraphExecDestroy, exec);
    }
    CHECK(live[0] && live[1]);
    for (int i = 0; i < WAYS; i++)
        if (live[i]) give(pointers[i]);
    wait_for_all();
    DO(cuDeviceGraphMemTrim, 0);
}

/* Each instance of a graph, and of its clones and children, has memory of its own. */
static void graphs_of_graphs(void) {
    enum { GRAPHS = 4 };
    CUgraphExec execs[GRAPHS];
    CUgraph outer, clone;
    CUgraphNode node;
    CUdeviceptr pointers[GRAPHS], more;
    for (int i = 0; i < GRAPHS; i++) {
        DO(cuGraphCreate, &outer, 0);
        DO(cuGraphAddChildGraphNode, &node, outer, NULL, 0, new_graph(200 * MIB, &pointers[i]));
        DO(cuGraphClone, &clone, outer);
        CHECK(granted(instantiate_flags(&execs[i], i % 2 ? clone : outer)));
    }
    CHECK(!take(&more, LARGE / 2));
    for (int i = 0; i < GRAPHS; i++) DO(cuGraphLaunch, execs[i], stream);
    DO(cuStreamSynchronize, stream);
    for (int i = 0; i < GRAPHS; i++) DO(cuGraphExecDestroy, execs[i]);
    CHECK(!take(&more, LARGE / 2));
    for (int i = 0; i < GRAPHS; i++) give(pointers[i]);
    wait_for_all();
    DO(cuDeviceGraphMemTrim, 0);
}

/* A call waits a second for the agent's look, which may be late on a busy machine. */
static void launch_patiently(CUgraphExec exec) {
    int left = MOMENTS;
    while (!granted(CALL(cuGraphLaunch, exec, stream))) wait_a_moment(&left);
}

/* Whatever a graph asks for, its launch takes whole pages. Most is taken before, since each launch
 * may wait for the agent's look. */
static void small_graphs(void) {
    enum { GRAPHS = 600 };
    static CUgraphExec execs[GRAPHS];
    static CUdeviceptr pointers[GRAPHS], most;
    int count = 0;
    CHECK(take(&most, MOST - 100 * MIB));
    while (count < GRAPHS && granted(instantiate_flags(&execs[count], new_graph(512, &pointers[count])))) {
        launch_patiently(execs[count++]);
    }
    CHECK(count < GRAPHS);
    while (count) {
        DO(cuGraphExecDestroy, execs[--count]);
        give(pointers[count]);
    }
    give(most);
    wait_for_all();
    DO(cuDeviceGraphMemTrim, 0);
}

/* Memory that one graph leaves allocated does not count as reserved for another, not launched yet. */
static void graphs_launched_late(void) {
    enum { GRAPHS = 2 };
    CUdeviceptr pointers[GRAPHS], more;
    CUgraphExec execs[GRAPHS];
    for (int i = 0; i < GRAPHS; i++)
        CHECK(granted(instantiate_flags(&execs[i], new_graph(400 * MIB, &pointers[i]))));
    DO(cuGraphLaunch, execs[0], stream);
    DO(cuStreamSynchronize, stream);
    DO(cuGraphExecDestroy, execs[0]);
    CHECK(!take(&more, LARGE / 2));
    DO(cuGraphLaunch, execs[1], stream);
    DO(cuStreamSynchronize, stream);
    DO(cuGraphExecDestroy, execs[1]);
    CHECK(!take(&more, LARGE / 2));
    for (int i = 0; i < GRAPHS; i++) give(pointers[i]);
    wait_for_all();
    DO(cuDeviceGraphMemTrim, 0);
}

/* Allocations that are recorded take memory when the graph is launched, not before. */
static void captures(void) {
    CUgraphExec exec;
    CUgraph graph;
    CUdeviceptr pointer, more;
    DO(cuStreamBeginCapture_v2, stream, 2);
    DO(cuMemAllocAsync, &pointer, LARGE, stream);
    DO(cuMemFreeAsync, pointer, stream);
    DO(cuStreamEndCapture, stream, &graph);
    CHECK(take(&more, LARGE));
    CHECK(!granted(instantiate_flags(&exec, graph)));
    give(more);
    CHECK(granted(instantiate_flags(&exec, graph)));
    CHECK(!take(&more, LARGE));
    DO(cuGraphLaunch, exec, stream);
    DO(cuStreamSynchronize, stream);
    CHECK(!take(&more, LARGE));
    DO(cuGraphExecDestroy, exec);
}

/* The same on the per-thread default stream, which only the _ptsz variants mean by NULL. */
static void captures_of_the_thread(void) {
    CUgraphExec exec;
    CUgraph graph;
    CUdeviceptr pointer, more;
    DO(cuStreamBeginCapture_v2_ptsz, NULL, 2);
    DO(cuMemAllocAsync_ptsz, &pointer, LARGE, NULL);
    DO(cuMemFreeAsync_ptsz, pointer, NULL);
    DO(cuStreamEndCapture_ptsz, NULL, &graph);
    CHECK(take(&more, LARGE));
    CHECK(!granted(instantiate_twin(&exec, graph)));
    give(more);
}

/* ---- pools --------------------------------------------------------------------------------------- */

static CUmemoryPool new_pool(uint64_t threshold) {
    CUmemPoolProps props = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    DO(cuMemPoolCreate, &pool, &props);
    DO(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    return pool;
}

/* The driver no longer reports what a destroyed pool holds. */
static void destroyed_pool(void) {
    CUdeviceptr pointers[6], more;
    CUmemoryPool pool = new_pool(UINT64_MAX);
    for (int i = 0; i < 6; i++)
        DO(cuMemAllocFromPoolAsync, &pointers[i], 100 * MIB, pool, stream);
    keep_busy();
    for (int i = 1; i < 6; i++) DO(cuMemFreeAsync, pointers[i], stream);
    DO(cuMemPoolDestroy, pool);
    CHECK(!take(&more, LARGE));
    wait_for_all();
    CHECK(take(&more, LARGE));
    give(more);
    DO(cuMemFreeAsync, pointers[0], stream);
    wait_for_all();
}

/* A pool that keeps blocks has to grow for those of another size. */
static void hoard(void) {
    CUmemoryPool pool = new_pool(UINT64_MAX);
    CUdeviceptr pointer, more;
    for (uint64_t bytes = 100 * MIB; bytes < 700 * MIB; bytes += 50 * MIB) {
        if (!granted(CALL(cuMemAllocFromPoolAsync, &pointer, bytes, pool, stream))) continue;
        DO(cuMemFreeAsync, pointer, stream);
        if (!granted(CALL(cuMemAllocFromPoolAsync, &more, bytes, pool, stream))) continue;
        DO(cuMemFreeAsync, more, stream);
    }
    wait_for_all();
    DO(cuMemPoolDestroy, pool);
}

static void small_pooled(void) {
    static CUdeviceptr pointers[20000];
    unsigned count = 0;
    while (count < 20000 &&
           granted(CALL(cuMemAllocAsync, &pointers[count], 200 << 10, stream)))
        count++;
    for (unsigned i = 0; i < count; i++) DO(cuMemFreeAsync, pointers[i], stream);
    wait_for_all();
}

/* ---- handles ------------------------------------------------------------------------------------- */

/* Released, but mapped twice, and found again by its address. */
static void handles(void) {
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr place, more;
    DO(cuMemAddressReserve, &place, 2 * LARGE, 0, 0, 0);
    DO(cuMemCreate, &handle, LARGE, &prop, 0);
    DO(cuMemMap, place, LARGE, 0, handle, 0);
    DO(cuMemMap, place + LARGE, LARGE, 0, handle, 0);
    DO(cuMemRelease, handle);
    DO(cuMemUnmap, place, LARGE);
    CHECK(!take(&more, LARGE));
    DO(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)(place + LARGE + PAGE));
    DO(cuMemUnmap, place + LARGE, LARGE);
    CHECK(!take(&more, LARGE));
    DO(cuMemRelease, again);
    CHECK(take(&more, LARGE));
    give(more);
}

/* ---- contexts ------------------------------------------------------------------------------------ */

/* Freed from another context than the one it was allocated in, in both directions. */
static void contexts(void) {
    CUcontext others[2];
    CUdeviceptr pointer, more;
    for (int i = 0; i < 2; i++) DO(cuCtxCreate_v2, &others[i], 0, 0);
    CHECK(take(&pointer, LARGE));
    DO(cuCtxDestroy_v2, others[0]);
    CHECK(!take(&more, LARGE));
    DO(cuCtxDestroy_v2, others[1]);
    DO(cuCtxSetCurrent, primary);
    CHECK(take(&more, LARGE));
    give(more);
}

static void many_contexts(void) {
    CUcontext made[100];
    int count = 0;
    while (count < 100 && granted(CALL(cuCtxCreate_v2, &made[count], 0, 0))) count++;
    CHECK(count < 100);
    while (count) DO(cuCtxDestroy_v2, made[--count]);
    DO(cuCtxSetCurrent, primary);
}

/* A device reset also frees memory in pools, so none of it may stay charged. */
static void reset(void) {
    CUdeviceptr pointer;
    for (int i = 0; i < 3; i++) {
        CHECK(granted(CALL(cuMemAllocAsync, &pointer, LARGE, stream)));
        DO(cuStreamSynchronize, stream);
        DO(cuDevicePrimaryCtxReset_v2, 0);
        DO(cuDevicePrimaryCtxRetain, &primary, 0);
        DO(cuCtxSetCurrent, primary);
        DO(cuStreamCreate, &stream, 1);
    }
}

/* ---- one of them --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*attack)(void);
} attacks[] = {
#define ATTACK(name) {#name, name}
    ATTACK(plain_behind_work),    ATTACK(pitched_behind_work),  ATTACK(pooled_behind_work),
    ATTACK(context_behind_work),  ATTACK(crumbs),               ATTACK(crumbs_of_many_sizes),
    ATTACK(arrays_of_a_page),     ATTACK(crumbs_between_pointers), ATTACK(crumbs_between_arrays),
    ATTACK(modules),              ATTACK(libraries),            ATTACK(modules_of_a_context),
    ATTACK(graphs_that_leave_memory), ATTACK(graphs_of_graphs), ATTACK(small_graphs),
    ATTACK(graphs_launched_late), ATTACK(captures),
    ATTACK(captures_of_the_thread), ATTACK(destroyed_pool),     ATTACK(hoard),
    ATTACK(small_pooled),
    ATTACK(handles),              ATTACK(contexts),             ATTACK(many_contexts),
    ATTACK(reset),
};
enum { ATTACKS = sizeof attacks / sizeof *attacks };

static void begin(void) {
    open_driver();
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &primary, 0);
    DO(cuCtxSetCurrent, primary);
    DO(cuStreamCreate, &stream, 1);
}

/* No memory stays charged that was freed. */
static void all_is_there(void) {
    CUdeviceptr pointer;
    int left = MOMENTS;
    wait_for_all();
    while (!take(&pointer, MOST)) wait_a_moment(&left);
    give(pointer);
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    for (int i = 0; i < ATTACKS; i++) {
        if (!strcmp(arguments[1], "list")) puts(attacks[i].name);
        if (strcmp(arguments[1], attacks[i].name)) continue;
        begin();
        attacks[i].attack();
        all_is_there();
    }
    return 0;
}
