/*
 * Random work over every way to take memory, on whatever driver is there. Somebody else looks
 * whether the card ever holds more than the limit. What is refused is refused; every other error
 * ends the program.
 *     soak SEED OPERATIONS THREADS [WAY]   with WAY only that one
 *     soak kill SEED KILLS AT_ONCE         keeps so many workers at it and kills each at some moment
 * SOAK_COUNT names a file of 8 bytes that counts operations, and is the sign of life.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "cuda_api.h"

#define MIB ((uint64_t)1 << 20)
#define PAGE (2 * MIB)
#define OBJECTS 12

static void *driver;

#define CALL(symbol, ...) ((__typeof__(&symbol))look_up(#symbol))(__VA_ARGS__)

/* Not hooked, so not declared with the rest. */
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                             CUdeviceptr wish, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *wish);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                               size_t count, CUdeviceptr pointer);

/* Where lookups in the driver are not hooked, the wrappers are found as linked programs find them. */
static void *look_up(const char *symbol) {
    void *function = getenv("SOAK_LINKED") ? dlsym(RTLD_DEFAULT, symbol) : NULL;
    if (!function) function = dlsym(driver, symbol);
    if (!function) fprintf(stderr, "no %s\n", symbol);
    CHECK(function);
    return function;
}

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

enum kind {
    NOTHING, POINTER, LATE, ASYNC, HANDLE, MAPPED, ARRAY, MIPMAP, CONTEXT, POOL, GRAPH, LEFT, MODULE
};

struct object {
    enum kind kind;
    uint64_t handle, address, bytes;
};

static CUcontext primary;
static int only = -1;

/* True when it was granted; a refusal is fine. */
static bool granted(CUresult result) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
    CHECK_IS(result, CUDA_SUCCESS);
    return true;
}

static void map(struct object *object) {
    CHECK_IS(CALL(cuMemAddressReserve, &object->address, object->bytes, 0, 0, 0), CUDA_SUCCESS);
    CHECK_IS(CALL(cuMemMap, object->address, object->bytes, 0, object->handle, 0), CUDA_SUCCESS);
    CHECK_IS(CALL(cuMemRelease, object->handle), CUDA_SUCCESS);
    object->kind = MAPPED;
}

static void take_handle(struct object *object, uint64_t bytes, bool mapped) {
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    object->bytes = (bytes + PAGE - 1) & -PAGE;
    if (!granted(CALL(cuMemCreate, &object->handle, object->bytes, &prop, 0))) return;
    object->kind = HANDLE;
    if (mapped) map(object);
}

static CUmemoryPool new_pool(void) {
    CUmemPoolProps props = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CHECK_IS(CALL(cuMemPoolCreate, &pool, &props), CUDA_SUCCESS);
    return pool;
}

/* Keeps what is freed to it. */
static CUmemoryPool hoard;

static void open_hoard(void) {
    uint64_t all = UINT64_MAX;
    hoard = new_pool();
    CHECK_IS(CALL(cuMemPoolSetAttribute, hoard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
             CUDA_SUCCESS);
}

static void take_pointer(struct object *object, uint64_t bytes, unsigned how) {
    size_t pitch;
    CUresult result =
        how == 0   ? CALL(cuMemAlloc_v2, &object->address, bytes)
        : how == 1 ? CALL(cuMemAllocPitch_v2, &object->address, &pitch, 1000, bytes / 1024 + 1, 4)
        : how == 2 ? CALL(cuMemAllocManaged, &object->address, bytes, 1)
        : how == 3 ? CALL(cuMemAllocAsync, &object->address, bytes, NULL)
                   : CALL(cuMemAllocFromPoolAsync, &object->address, bytes, hoard, NULL);
    if (granted(result)) object->kind = how >= 3 ? ASYNC : bytes % 4 ? POINTER : LATE;
}

static void take_array(struct object *object, uint64_t bytes, bool mipmapped) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {1024, bytes / 4096 + 1, 0, 0x20, 1, 0};
    if (mipmapped) {
        if (granted(CALL(cuMipmappedArrayCreate, (CUmipmappedArray *)&object->handle, &shape, 3)))
            object->kind = MIPMAP;
    } else if (granted(CALL(cuArray3DCreate_v2, (CUarray *)&object->handle, &shape))) {
        object->kind = ARRAY;
    }
}

/* With memory in it that goes with it. */
static void take_context(struct object *object, uint64_t bytes) {
    if (!granted(CALL(cuCtxCreate_v2, (CUcontext *)&object->handle, 0, 0))) return;
    CUcontext popped; /* it was made current */
    object->kind = CONTEXT;
    granted(CALL(cuMemAlloc_v2, &object->address, bytes));
    CHECK_IS(CALL(cuCtxPopCurrent_v2, &popped), CUDA_SUCCESS);
}

/* A pool of its own. */
static void take_pool(struct object *object, uint64_t bytes) {
    CUmemoryPool *pool = (CUmemoryPool *)&object->handle;
    *pool = new_pool();
    if (granted(CALL(cuMemAllocFromPoolAsync, &object->address, bytes, *pool, NULL)))
        object->kind = POOL;
    else CHECK_IS(CALL(cuMemPoolDestroy, *pool), CUDA_SUCCESS);
}

static void end_graph(struct object *object) {
    CHECK_IS(CALL(cuGraphDestroy, (CUgraph)object->address), CUDA_SUCCESS);
    CHECK_IS(CALL(cuDeviceGraphMemTrim, 0), CUDA_SUCCESS);
}

/* A graph that allocates, launched once if at all; what it leaves lives on without it. */
static void take_graph(struct object *object, uint64_t bytes, bool leaves, bool launches) {
    CUgraphNode first, last;
    CUgraph *graph = (CUgraph *)&object->address;
    CUgraphExec *exec = (CUgraphExec *)&object->handle;
    CUDA_MEM_ALLOC_NODE_PARAMS wish = {
        .pool = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytes = bytes};
    CHECK_IS(CALL(cuGraphCreate, graph, 0), CUDA_SUCCESS);
    CHECK_IS(CALL(cuGraphAddMemAllocNode, &first, *graph, NULL, 0, &wish), CUDA_SUCCESS);
    if (!leaves)
        CHECK_IS(CALL(cuGraphAddMemFreeNode, &last, *graph, &first, 1, wish.pointer), CUDA_SUCCESS);
    if (!granted(CALL(cuGraphInstantiateWithFlags, exec, *graph, 0))) return end_graph(object);
    object->kind = GRAPH;
    if (!launches || !granted(CALL(cuGraphLaunch, *exec, NULL)) || !leaves) return;
    CHECK_IS(CALL(cuStreamSynchronize, NULL), CUDA_SUCCESS);
    CHECK_IS(CALL(cuGraphExecDestroy, *exec), CUDA_SUCCESS);
    end_graph(object);
    object->address = wish.pointer;
    object->kind = LEFT;
}

static void take_module(struct object *object) {
    static const char image[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                                ".visible .entry nothing() { ret; }\n";
    if (granted(CALL(cuModuleLoadData, (CUmodule *)&object->handle, image))) object->kind = MODULE;
}

/* Code is measured by what the card has less, so it is not mixed with what others take and give. */
enum { MIXED = 25 };

static void take(struct object *object, uint64_t *state) {
    uint64_t bytes = 1 + random_next(state) % (random_next(state) % 2 ? MIB : 100 * MIB);
    unsigned how = only >= 0 ? (unsigned)only : (unsigned)(random_next(state) % MIXED);
    if (how < 12) take_pointer(object, bytes, how % 4);
    else if (how < 15) take_handle(object, bytes, how == 12);
    else if (how < 19) take_array(object, bytes, how == 15);
    else if (how == 19) take_context(object, bytes);
    else if (how == 20) take_pool(object, bytes);
    else if (how == 21) take_graph(object, bytes, false, true);
    else if (how == 22) take_graph(object, bytes, bytes % 2, bytes % 3);
    else if (how == 23) take_pointer(object, bytes, 4);
    else if (how == 24) take_array(object, bytes % MIB, random_next(state) % 2);
    else take_module(object);
}

static void give(struct object *object, uint64_t *state) {
    CUresult result = CUDA_SUCCESS;
    bool pooled = object->kind == ASYNC || object->kind == POOL;
    bool wait = object->kind == GRAPH || ((pooled || object->kind == LATE) && random_next(state) % 2);
    if (object->kind == GRAPH) CHECK_IS(CALL(cuStreamSynchronize, NULL), CUDA_SUCCESS);
    switch (object->kind) {
        case POINTER: result = CALL(cuMemFree_v2, object->address); break;
        case LEFT: case LATE: case ASYNC: result = CALL(cuMemFreeAsync, object->address, NULL); break;
        case HANDLE: result = CALL(cuMemRelease, object->handle); break;
        case MAPPED: result = CALL(cuMemUnmap, object->address, object->bytes);
            CHECK_IS(CALL(cuMemAddressFree, object->address, object->bytes), CUDA_SUCCESS); break;
        case ARRAY: result = CALL(cuArrayDestroy, (CUarray)object->handle); break;
        case MIPMAP: result = CALL(cuMipmappedArrayDestroy, (CUmipmappedArray)object->handle); break;
        case CONTEXT: result = CALL(cuCtxDestroy_v2, (CUcontext)object->handle); break;
        case POOL: result = CALL(cuMemFreeAsync, object->address, NULL);
            CHECK_IS(CALL(cuMemPoolDestroy, (CUmemoryPool)object->handle), CUDA_SUCCESS); break;
        case GRAPH: result = CALL(cuGraphExecDestroy, (CUgraphExec)object->handle);
            end_graph(object); break;
        case MODULE: result = CALL(cuModuleUnload, (CUmodule)object->handle); break;
        default: break;
    }
    CHECK_IS(result, CUDA_SUCCESS);
    if (wait) CHECK_IS(CALL(cuCtxSynchronize), CUDA_SUCCESS);
    object->kind = NOTHING;
}

static int operations;
static uint64_t nobody_counts, *done = &nobody_counts;

static void open_count(void) {
    const char *path = getenv("SOAK_COUNT");
    if (!path) return;
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(done != MAP_FAILED);
    close(fd);
}

static void *work(void *seed) {
    struct object objects[OBJECTS] = {0};
    uint64_t state = (uint64_t)(uintptr_t)seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    CHECK_IS(CALL(cuCtxSetCurrent, primary), CUDA_SUCCESS);
    for (int i = 0; i < operations; i++) {
        struct object *object = &objects[random_next(&state) % OBJECTS];
        if (object->kind) give(object, &state); else take(object, &state);
        __atomic_fetch_add(done, 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < OBJECTS; i++)
        if (objects[i].kind) give(&objects[i], &state);
    return NULL;
}

/* Returns when all threads are through, or there is no room even for a context. */
static void soak(uint64_t seed, int threads) {
    pthread_t thread[8];
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CHECK(driver && threads <= 8);
    CHECK_IS(CALL(cuInit, 0), CUDA_SUCCESS);
    if (!granted(CALL(cuDevicePrimaryCtxRetain, &primary, 0))) return;
    open_hoard();
    for (int i = 0; i < threads; i++)
        CHECK(!pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(seed * 8 + (unsigned)i)));
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    CHECK_IS(CALL(cuCtxSetCurrent, primary), CUDA_SUCCESS);
    CHECK_IS(CALL(cuCtxSynchronize), CUDA_SUCCESS);
}

/* ---- killing: the killer itself never touches the driver, so that its children may ------------ */

enum { AT_ONCE_MAX = 64, US = 1000 };

struct worker {
    pid_t pid;
    uint64_t until; /* when it is killed: ns, CLOCK_MONOTONIC */
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* 16 us to 33 ms, short ones as often as long ones: deaths fall into starts as well as into work. */
static uint64_t life(uint64_t *state) {
    uint64_t longest = (uint64_t)16 * US << random_next(state) % 12;
    return longest / 2 + random_next(state) % (longest / 2);
}

/* Some load everything anew, some inherit the loaded libraries. */
static void be_worker(uint64_t seed, char *self) {
    char text[24];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    if (seed % 2) execl("/proc/self/exe", self, text, "1000000", seed % 4 == 1 ? "1" : "3", NULL);
    operations = 1000000;
    soak(seed, seed % 4 == 2 ? 1 : 3);
    _exit(0);
}

static struct worker new_worker(uint64_t *state, char *self) {
    uint64_t seed = random_next(state) >> 8, until = now_ns() + life(state);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) be_worker(seed, self);
    return (struct worker){pid, until};
}

static struct worker *first_to_die(struct worker *workers, int count) {
    struct worker *first = workers;
    for (int i = 1; i < count; i++)
        if (workers[i].until < first->until) first = &workers[i];
    return first;
}

static void sleep_until(uint64_t when) {
    struct timespec at = {(time_t)(when / 1000000000), (long)(when % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* True when it died of it; one that found no room may have ended before. */
static bool kill_worker(const struct worker *worker) {
    int status;
    CHECK(!kill(worker->pid, SIGKILL));
    CHECK(waitpid(worker->pid, &status, 0) == worker->pid);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    CHECK_IS(status, 0);
    return false;
}

static int killer(uint64_t seed, int kills, int at_once, char *self) {
    struct worker workers[AT_ONCE_MAX];
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    CHECK(at_once > 0 && at_once <= AT_ONCE_MAX);
    for (int i = 0; i < at_once; i++) workers[i] = new_worker(&state, self);
    while (kills > 0) {
        struct worker *next = first_to_die(workers, at_once);
        sleep_until(next->until);
        if (kill_worker(next)) kills--;
        *next = new_worker(&state, self);
    }
    for (int i = 0; i < at_once; i++) kill_worker(&workers[i]);
    return 0;
}

int main(int count, char **arguments) {
    CHECK(count > 3);
    open_count();
    if (!strcmp(arguments[1], "kill")) {
        CHECK(count > 4);
        return killer(strtoull(arguments[2], NULL, 10), atoi(arguments[3]), atoi(arguments[4]),
                      arguments[0]);
    }
    operations = atoi(arguments[2]);
    if (count > 4) only = atoi(arguments[4]);
    soak(strtoull(arguments[1], NULL, 10), atoi(arguments[3]));
    return 0;
}
