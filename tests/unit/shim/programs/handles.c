/*
 * Handles that one thread destroys, and captures that it makes, while others are at it, on whatever
 * driver is there: it ends the program, as simgpu does, if a handle is used after its end. `handles
 * NAME [ROUNDS]`; 1 GiB of card 0 is allowed, and its time is metered.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "cases.h"
#include "driver.h"

#define MIB ((uint64_t)1 << 20)
#define THREADS 4

/* Of functions that are not hooked, so not declared with the rest. */
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);

static CUcontext context;
static unsigned rounds = 1000;

static void *run_case(void *work) {
    DO(cuCtxSetCurrent, context);
    ((void (*)(void))work)();
    return NULL;
}

static void in_threads(void (*work)(void)) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, run_case, (void *)work));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
}

/* ---- pools: a thread that waits or is refused memory settles the pools of all threads ---- */

static CUmemoryPool new_pool(void) {
    const CUmemPoolProps props = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    DO(cuMemPoolCreate, &pool, &props);
    return pool;
}

static CUdeviceptr take_from(CUmemoryPool pool, CUstream stream) {
    CUdeviceptr pointer;
    DO(cuMemAllocFromPoolAsync, &pointer, MIB, pool, stream);
    return pointer;
}

static void use_pools(void) {
    CUstream stream;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < rounds; i++) {
        CUmemoryPool pool = new_pool();
        CUdeviceptr pointer = take_from(pool, stream);
        DO(cuMemFreeAsync, pointer, stream);
        if (i % 2) DO(cuStreamSynchronize, stream);
        DO(cuMemPoolDestroy, pool);
        if (i % 3 == 0) DO(cuStreamSynchronize, stream);
    }
    DO(cuStreamDestroy_v2, stream);
}

static void pools(void) {
    in_threads(use_pools);
}

/* One thread's pool is where all take their memory, until that thread destroys it. */
static void use_present_pool(void) {
    CUdeviceptr pointer;
    CUstream stream;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < rounds; i++) {
        CUmemoryPool pool = new_pool();
        DO(cuDeviceSetMemPool, 0, pool);
        DO(cuMemAllocAsync, &pointer, MIB, stream);
        DO(cuMemFreeAsync, pointer, stream);
        DO(cuMemPoolDestroy, pool);
        if (i % 3 == 0) DO(cuStreamSynchronize, stream);
    }
    DO(cuStreamDestroy_v2, stream);
}

static void present_pool(void) {
    in_threads(use_present_pool);
}

/* ---- streams: a wait ends the thread's grants for all streams that it used ---- */

static CUfunction spin;
static CUstream handed_over;
static unsigned begun, done;

static void load_kernel(void) {
    static const char image[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                                ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";
    CUmodule module;
    DO(cuModuleLoadData, &module, image);
    DO(cuModuleGetFunction, &spin, module, "spin_ns");
}

static void launch(CUstream stream) {
    uint64_t ns = 1000;
    void *parameters[] = {&ns};
    DO(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static void hand_over(CUstream stream) {
    CUstream none = NULL;
    while (!__atomic_compare_exchange_n(&handed_over, &none, stream, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
        none = NULL;
        sched_yield();
    }
}

static void use_stream(void) {
    CUstream stream;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 8; i++) launch(stream); /* the last of which are paid from a grant */
    hand_over(stream);
    DO(cuCtxSynchronize);
}

static void destroy_stream(void) {
    CUstream stream = __atomic_exchange_n(&handed_over, NULL, __ATOMIC_ACQ_REL);
    if (stream) DO(cuStreamDestroy_v2, stream);
    else sched_yield();
}

/* One of two threads destroys a stream into which the other has launched, and does not use it again. */
static void use_or_destroy_streams(void) {
    bool destroys = __atomic_fetch_add(&begun, 1, __ATOMIC_RELAXED) % 2;
    for (unsigned i = 0; !destroys && i < rounds; i++) use_stream();
    if (!destroys) __atomic_fetch_add(&done, 1, __ATOMIC_RELEASE);
    while (destroys && __atomic_load_n(&done, __ATOMIC_ACQUIRE) < THREADS / 2) destroy_stream();
}

static void streams(void) {
    load_kernel();
    in_threads(use_or_destroy_streams);
}

/* ---- captures: calls that are permitted during one must not invalidate it ---- */

static CUstream beside;

static void allocate(void) {
    CUdeviceptr pointer;
    DO(cuMemAllocAsync, &pointer, MIB, beside);
    DO(cuMemFreeAsync, pointer, beside);
}

static CUmemoryPool made_before;

static void allocate_from_pool(void) {
    DO(cuMemFreeAsync, take_from(made_before, beside), beside);
}

/* Before the refusal, all pools give back what they keep. */
static void be_refused(void) {
    CUdeviceptr pointer;
    CHECK_IS(CALL(cuMemAllocAsync, &pointer, 2048 * MIB, beside), CUDA_ERROR_OUT_OF_MEMORY);
}

static void destroy_pool(void) {
    DO(cuMemPoolDestroy, made_before);
}

static void launch_and_wait(void) {
    for (int i = 0; i < 100; i++) {
        launch(beside);
        if (i % 8 == 0) DO(cuStreamSynchronize, beside);
    }
}

static void wait_for_all(void) {
    DO(cuCtxSynchronize);
}

static void ask_for_memory(void) {
    size_t left, total;
    DO(cuMemGetInfo_v2, &left, &total);
}

static void use_graph(void) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.pool = {.type = 1, .location = {1, 0}}, .bytes = MIB};
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, last;
    DO(cuGraphCreate, &graph, 0);
    DO(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &params);
    DO(cuGraphAddMemFreeNode, &last, graph, &node, 1, params.pointer);
    DO(cuGraphInstantiateWithFlags, &exec, graph, 0);
    DO(cuGraphLaunch, exec, beside);
    DO(cuStreamSynchronize, beside);
    DO(cuGraphExecDestroy, exec);
    DO(cuGraphDestroy, graph);
}

static void destroy_beside(void) {
    CUstream stream;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    launch(stream);
    DO(cuStreamDestroy_v2, stream);
}

static const struct test_case beside_capture[] = {
    {"allocate", allocate},
    {"allocate from a pool", allocate_from_pool},
    {"be refused", be_refused},
    {"launch and wait", launch_and_wait},
    {"ask for memory", ask_for_memory},
    {"allocate by a graph", use_graph},
    {"destroy a pool", destroy_pool},
    {"destroy a stream", destroy_beside},
    {"wait for all", wait_for_all},
};

static void capture_beside(const struct test_case *call, CUstream captured) {
    pthread_t thread;
    CUgraph graph;
    DO(cuStreamBeginCapture_v2, captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(!pthread_create(&thread, NULL, run_case, (void *)call->run));
    CHECK(!pthread_join(thread, NULL));
    CUresult result = CALL(cuStreamEndCapture, captured, &graph);
    if (result != CUDA_SUCCESS) fprintf(stderr, "a capture was spoilt by: %s\n", call->name);
    CHECK_IS(result, CUDA_SUCCESS);
    DO(cuGraphDestroy, graph);
}

static void captures(void) {
    CUstream captured;
    load_kernel();
    made_before = new_pool();
    DO(cuStreamCreate, &captured, CU_STREAM_NON_BLOCKING);
    DO(cuStreamCreate, &beside, CU_STREAM_NON_BLOCKING);
    for (size_t i = 0; i < sizeof beside_capture / sizeof *beside_capture; i++)
        capture_beside(&beside_capture[i], captured);
}

/* ---- a graph that gets the handle of one that was destroyed ---- */

static CUgraphExec graph_of(uint64_t ns, CUstream stream) {
    void *parameters[] = {&ns};
    CUgraph graph;
    CUgraphExec exec;
    DO(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    DO(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
    DO(cuStreamEndCapture, stream, &graph);
    DO(cuGraphInstantiateWithFlags, &exec, graph, 0);
    DO(cuGraphDestroy, graph);
    return exec;
}

static bool is_among(CUgraphExec exec, const CUgraphExec *list, int count) {
    while (count && list[count - 1] != exec) count--;
    return count;
}

/* Says how many ms 40 launches of a graph wait that has the handle of one that was destroyed. */
static void graph_again(void) {
    enum { FIRST = 16, LAUNCHES = 40 };
    CUgraphExec first[FIRST], again;
    struct timespec from, to;
    CUstream stream;
    load_kernel();
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < FIRST; i++) first[i] = graph_of(20000, stream);
    for (int i = 0; i < 50 * FIRST; i++) DO(cuGraphLaunch, first[i % FIRST], stream);
    DO(cuStreamSynchronize, stream);
    for (int i = 0; i < FIRST; i++) DO(cuGraphExecDestroy, first[i]);
    for (int i = 0; i < 1000; i++)
        if (is_among(again = graph_of(5000000, stream), first, FIRST)) break;
    CHECK(is_among(again, first, FIRST));
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < LAUNCHES; i++) DO(cuGraphLaunch, again, stream);
    clock_gettime(CLOCK_MONOTONIC, &to);
    fprintf(stderr, "%ld\n", (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000);
}

/* ---- more pools than a table of a usual size has ---- */

static void many_pools(void) {
    enum { MANY = 200 };
    CUmemoryPool made[MANY];
    CUdeviceptr pointers[MANY];
    CUstream stream;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < MANY; i++) pointers[i] = take_from(made[i] = new_pool(), stream);
    for (int i = 0; i < MANY; i++) DO(cuMemFreeAsync, pointers[i], stream);
    for (int i = 0; i < MANY; i++) DO(cuMemPoolDestroy, made[i]);
    DO(cuStreamSynchronize, stream);
    DO(cuMemAllocAsync, pointers, 600 * MIB, stream);
}

static const struct test_case cases[] = {
    {"graph_again", graph_again},
    {"pools", pools},
    {"present_pool", present_pool},
    {"streams", streams},
    {"captures", captures},
    {"many_pools", many_pools},
};

int main(int count, char **arguments) {
    if (count < 2) return cases_list(cases, sizeof cases / sizeof *cases), 0;
    open_driver();
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &context, 0);
    DO(cuCtxSetCurrent, context);
    if (count > 2) rounds = (unsigned)atoi(arguments[2]);
    cases_run(cases, sizeof cases / sizeof *cases, arguments[1]);
    return 0;
}
