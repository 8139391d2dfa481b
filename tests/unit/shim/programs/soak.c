/*
 * Random work over every way to take memory, on whatever driver is there. The test checks meanwhile
 * that the card never exceeds the limit. Refusals are expected; any other error ends the program.
 *     soak SEED OPERATIONS THREADS [WAY]   with WAY only that one
 *     soak kill SEED KILLS AT_ONCE         keeps AT_ONCE workers running and kills each after a random time
 * SOAK_COUNT names a file in which each thread counts its operations, to show progress; SOAK_BOARD one through
 * which processes offer each other memory. Work goes to as many cards as there are.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define MIB ((uint64_t)1 << 20)
#define PAGE (2 * MIB)
#define OBJECTS 12
#define CARDS_MAX 2
#define THREADS_MAX 8

/* Not hooked, so not declared with the rest. */
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes);
CUresult cuDeviceGetCount(int *count);
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                           size_t bytes);

struct CUmulticastObjectProp_st {
    unsigned devices;
    size_t bytes;
    unsigned long long handle_types, flags;
};

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

enum kind {
    NOTHING, POINTER, LATE, ASYNC, HANDLE, MAPPED, ARRAY, MIPMAP, CONTEXT, POOL, GRAPH, LEFT, MODULE,
    EXPORTED, RETAINED, OPENED, MULTICAST, SPARSE, EXTERNAL, OLD
};

struct object {
    enum kind kind;
    int card;
    uint64_t handle, second, address, bytes;
    int descriptor;
};

static CUcontext primary[CARDS_MAX];
static int cards, only = -1;

static void map(struct object *object) {
    CHECK_IS(CALL(cuMemAddressReserve, &object->address, object->bytes, 0, 0, 0), CUDA_SUCCESS);
    CHECK_IS(CALL(cuMemMap, object->address, object->bytes, 0, object->handle, 0), CUDA_SUCCESS);
    CHECK_IS(CALL(cuMemRelease, object->handle), CUDA_SUCCESS);
    object->kind = MAPPED;
}

static void take_handle(struct object *object, uint64_t bytes, bool mapped) {
    CUmemAllocationProp prop = {.type = 1,
                                .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, object->card}};
    object->bytes = (bytes + PAGE - 1) & -PAGE;
    if (!granted(CALL(cuMemCreate, &object->handle, object->bytes, &prop, 0))) return;
    object->kind = HANDLE;
    if (mapped) map(object);
}

/* A descriptor of it, and a second handle that was imported from that. */
static void take_exported(struct object *object, uint64_t bytes) {
    const int type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    take_handle(object, bytes, false);
    if (!object->kind) return;
    CHECK_IS(CALL(cuMemExportToShareableHandle, &object->descriptor, object->handle, type, 0),
             CUDA_SUCCESS);
    void *shared = (void *)(intptr_t)object->descriptor;
    if (!granted(CALL(cuMemImportFromShareableHandle, &object->second, shared, type)))
        object->second = 0;
    object->kind = EXPORTED;
}

static void give_exported(struct object *object, bool close_first) {
    if (close_first) close(object->descriptor);
    CHECK_IS(CALL(cuMemRelease, object->handle), CUDA_SUCCESS);
    if (object->second) CHECK_IS(CALL(cuMemRelease, object->second), CUDA_SUCCESS);
    if (!close_first) close(object->descriptor);
}

/* A handle of mapped memory. */
static void take_retained(struct object *object, uint64_t bytes) {
    take_handle(object, bytes, true);
    if (!object->kind) return;
    void *address = (void *)(uintptr_t)object->address;
    CHECK_IS(CALL(cuMemRetainAllocationHandle, &object->handle, address), CUDA_SUCCESS);
    object->kind = RETAINED;
}

static void give_mapped(struct object *object) {
    CHECK_IS(CALL(cuMemUnmap, object->address, object->bytes), CUDA_SUCCESS);
    CHECK_IS(CALL(cuMemAddressFree, object->address, object->bytes), CUDA_SUCCESS);
}

static void give_retained(struct object *object, bool unmap_first) {
    if (unmap_first) give_mapped(object);
    CHECK_IS(CALL(cuMemRelease, object->handle), CUDA_SUCCESS);
    if (!unmap_first) give_mapped(object);
}

/* ---- objects that keep memory, also without a handle to it ---------------------------------------- */

/* Memory for an object, whose handle it may have later or not. */
static void take_second(struct object *object, uint64_t bytes) {
    take_handle(object, bytes, false);
    object->second = object->handle;
}

static void give_second(struct object *object) {
    if (object->second) CHECK_IS(CALL(cuMemRelease, object->second), CUDA_SUCCESS);
    object->second = 0;
}

/* A refusal leaves the memory as it is. */
static void bind(struct object *object, CUmemGenericAllocationHandle multicast) {
    CHECK_IS(CALL(cuMulticastAddDevice, multicast, object->card), CUDA_SUCCESS);
    CUresult result =
        CALL(cuMulticastBindMem, multicast, 0, object->second, 0, object->bytes, 0);
    if (!granted(result)) {
        CHECK_IS(CALL(cuMemRelease, multicast), CUDA_SUCCESS);
        return;
    }
    object->handle = multicast;
    object->kind = MULTICAST;
}

static void take_multicast(struct object *object, uint64_t bytes) {
    CUmemGenericAllocationHandle multicast;
    take_second(object, bytes);
    if (!object->kind) return;
    const CUmulticastObjectProp prop = {1, object->bytes, 0, 0};
    if (granted(CALL(cuMulticastCreate, &multicast, &prop))) bind(object, multicast);
    if (object->kind == MULTICAST && bytes % 2) give_second(object);
}

static void give_multicast(struct object *object, bool unbind) {
    if (unbind)
        CHECK_IS(CALL(cuMulticastUnbind, object->handle, object->card, 0, object->bytes),
                 CUDA_SUCCESS);
    CHECK_IS(CALL(cuMemRelease, object->handle), CUDA_SUCCESS);
    give_second(object);
}

/* Two tiles of it, of which one may be unmapped again. */
static void map_tiles(struct object *object, CUarray array, bool unmap) {
    enum { LEVEL = 0, UNMAP = 2, TILE = 128 };
    CUarrayMapInfo tiles[3];
    for (unsigned i = 0; i < 3; i++) {
        tiles[i] = (CUarrayMapInfo){.resource = array,
                                    .subresource_type = LEVEL,
                                    .operation = CU_MEM_OPERATION_TYPE_MAP,
                                    .handle = object->second,
                                    .devices = 1u << object->card};
        const unsigned place[8] = {0, 0, i % 2 * TILE, 0, 0, TILE, TILE, 1};
        memcpy(tiles[i].subresource, place, sizeof place);
    }
    tiles[2].operation = UNMAP;
    granted(CALL(cuMemMapArrayAsync, tiles, unmap ? 3 : 2, NULL));
}

static void take_sparse(struct object *object, uint64_t bytes) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, 0x20, 1, CUDA_ARRAY3D_SPARSE};
    CUarray array;
    take_second(object, bytes);
    if (!object->kind || !granted(CALL(cuArray3DCreate_v2, &array, &shape))) return;
    map_tiles(object, array, bytes % 3 == 0);
    if (bytes % 2) give_second(object);
    object->handle = (uintptr_t)array;
    object->kind = SPARSE;
}

static void give_sparse(struct object *object) {
    CHECK_IS(CALL(cuArrayDestroy, (CUarray)object->handle), CUDA_SUCCESS);
    give_second(object);
}

static void map_external(struct object *object, bool buffer) {
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.bytes = object->bytes};
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC part = {
        .array = {64, 64, 0, 0x20, 1, 0}, .levels = 2};
    CUexternalMemory memory = (CUexternalMemory)object->handle;
    object->second = 0;
    if (buffer) DO(cuExternalMemoryGetMappedBuffer, &object->address, memory, &whole);
    else DO(cuExternalMemoryGetMappedMipmappedArray, (CUmipmappedArray *)&object->second, memory,
            &part);
}

static void end_import(struct object *object) {
    if (object->handle) DO(cuDestroyExternalMemory, (CUexternalMemory)object->handle);
    object->handle = 0;
}

/* A file in memory stands for memory of another interface; once imported, it belongs to the driver. */
static void take_external(struct object *object, uint64_t bytes) {
    enum { OPAQUE_FD = 1 };
    object->bytes = (bytes + PAGE - 1) & -PAGE;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = OPAQUE_FD, .bytes = object->bytes};
    CHECK((from.handle.fd = memfd_create("soak", MFD_CLOEXEC)) >= 0);
    CHECK(!ftruncate(from.handle.fd, (off_t)object->bytes));
    if (!granted(CALL(cuImportExternalMemory, (CUexternalMemory *)&object->handle, &from))) {
        close(from.handle.fd);
        return;
    }
    object->kind = EXTERNAL;
    map_external(object, bytes % 3);
    if (bytes % 2) end_import(object);
}

static void give_external(struct object *object, bool handle_first) {
    if (handle_first) end_import(object);
    if (object->second) DO(cuMipmappedArrayDestroy, (CUmipmappedArray)object->second);
    else DO(cuMemFree_v2, object->address);
    end_import(object);
}

/* ---- memory of other processes: its owner may be killed at any moment, even while it writes ------ */

enum { NOTICES = 8 };

struct notice {
    uint64_t sum;
    CUipcMemHandle handle;
};

static struct notice nobody_reads[NOTICES], *board = nobody_reads;

static uint64_t sum_of(const CUipcMemHandle *handle) {
    uint64_t sum = 1, words[sizeof *handle / sizeof sum];
    memcpy(words, handle, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) sum = sum * 31 + words[i];
    return sum;
}

static void take_shown(struct object *object, unsigned where) {
    struct notice notice;
    if (!granted(CALL(cuMemAlloc_v2, &object->address, PAGE))) return;
    object->kind = POINTER;
    if (CALL(cuIpcGetMemHandle, &notice.handle, object->address) != CUDA_SUCCESS) return;
    notice.sum = sum_of(&notice.handle);
    board[where] = notice;
}

/* A process cannot open its own memory, nor memory that is gone. */
static void take_opened(struct object *object, unsigned where) {
    struct notice notice = board[where];
    if (notice.sum != sum_of(&notice.handle)) return;
    CUresult result = CALL(cuIpcOpenMemHandle_v2, &object->address, notice.handle, 1);
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_CONTEXT) return;
    if (granted(result)) object->kind = OPENED;
}

/* ---- pools -------------------------------------------------------------------------------------- */

static CUmemoryPool new_pool(int card) {
    CUmemPoolProps props = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, card}};
    CUmemoryPool pool;
    CHECK_IS(CALL(cuMemPoolCreate, &pool, &props), CUDA_SUCCESS);
    return pool;
}

/* Pools that keep freed memory. */
static CUmemoryPool hoards[CARDS_MAX];

static void open_hoard(int card) {
    uint64_t all = UINT64_MAX;
    hoards[card] = new_pool(card);
    CHECK_IS(CALL(cuMemPoolSetAttribute, hoards[card], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
             CUDA_SUCCESS);
}

static void take_pointer(struct object *object, uint64_t bytes, unsigned how) {
    size_t pitch;
    CUresult result =
        how == 0   ? CALL(cuMemAlloc_v2, &object->address, bytes)
        : how == 1 ? CALL(cuMemAllocPitch_v2, &object->address, &pitch, 1000, bytes / 1024 + 1, 4)
        : how == 2 ? CALL(cuMemAllocManaged, &object->address, bytes, 1)
        : how == 3 ? CALL(cuMemAllocAsync, &object->address, bytes, NULL)
                   : CALL(cuMemAllocFromPoolAsync, &object->address, bytes, hoards[object->card], NULL);
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

/* A context with an allocation that ends with it. */
static void take_context(struct object *object, uint64_t bytes, bool old) {
    CUcontext *made = (CUcontext *)&object->handle;
    if (!granted(old ? CALL(cuCtxCreate, made, 0, object->card)
                     : CALL(cuCtxCreate_v2, made, 0, object->card)))
        return;
    CUcontext popped; /* it was made current */
    object->kind = CONTEXT;
    granted(CALL(cuMemAlloc_v2, &object->address, bytes));
    CHECK_IS(CALL(cuCtxPopCurrent_v2, &popped), CUDA_SUCCESS);
}

/* Their pointers have 32 bits, so that there may be no address for all that the limit allows. */
static void take_old(struct object *object, uint64_t bytes) {
    CUdeviceptr_v1 pointer;
    unsigned pitch;
    CUresult result =
        bytes % 2 ? CALL(cuMemAlloc, &pointer, (unsigned)bytes)
                  : CALL(cuMemAllocPitch, &pointer, &pitch, 1000, (unsigned)bytes / 1024 + 1, 4);
    if (!granted(result)) return;
    object->address = pointer;
    object->kind = OLD;
}

static void take_old_array(struct object *object, uint64_t bytes) {
    const CUDA_ARRAY_DESCRIPTOR_v1 plane = {1024, (unsigned)(bytes / 4096 + 1), 0x20, 1};
    const CUDA_ARRAY3D_DESCRIPTOR_v1 cube = {64, 64, (unsigned)(bytes / 16384 + 1), 0x20, 1, 0};
    CUarray *array = (CUarray *)&object->handle;
    CUresult result =
        bytes % 2 ? CALL(cuArrayCreate, array, &plane) : CALL(cuArray3DCreate, array, &cube);
    if (granted(result)) object->kind = ARRAY;
}

/* A pool of its own. */
static void take_pool(struct object *object, uint64_t bytes) {
    CUmemoryPool *pool = (CUmemoryPool *)&object->handle;
    *pool = new_pool(object->card);
    if (granted(CALL(cuMemAllocFromPoolAsync, &object->address, bytes, *pool, NULL)))
        object->kind = POOL;
    else CHECK_IS(CALL(cuMemPoolDestroy, *pool), CUDA_SUCCESS);
}

static void end_graph(struct object *object) {
    CHECK_IS(CALL(cuGraphDestroy, (CUgraph)object->address), CUDA_SUCCESS);
    CHECK_IS(CALL(cuDeviceGraphMemTrim, object->card), CUDA_SUCCESS);
}

/* A graph that allocates, launched at most once; memory that it leaves outlives it. */
static void take_graph(struct object *object, uint64_t bytes, bool leaves, bool launches) {
    CUgraphNode first, last;
    CUgraph *graph = (CUgraph *)&object->address;
    CUgraphExec *exec = (CUgraphExec *)&object->handle;
    CUDA_MEM_ALLOC_NODE_PARAMS wish = {
        .pool = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, object->card}}, .bytes = bytes};
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

/* Code is measured by the decrease of free memory, so no other thread may allocate or free meanwhile. */
enum { MIXED = 34 };

static void take(struct object *object, uint64_t *state) {
    uint64_t bytes = 1 + random_next(state) % (random_next(state) % 2 ? MIB : 100 * MIB);
    unsigned how = only >= 0 ? (unsigned)only : (unsigned)(random_next(state) % MIXED);
    if (how < 12) take_pointer(object, bytes, how % 4);
    else if (how < 15) take_handle(object, bytes, how == 12);
    else if (how < 19) take_array(object, bytes, how == 15);
    else if (how == 19) take_context(object, bytes, false);
    else if (how == 20) take_pool(object, bytes);
    else if (how == 21) take_graph(object, bytes, false, true);
    else if (how == 22) take_graph(object, bytes, bytes % 2, bytes % 3);
    else if (how == 23) take_pointer(object, bytes, 4);
    else if (how == 24) take_array(object, bytes % MIB, random_next(state) % 2);
    else if (how == 25) take_exported(object, bytes);
    else if (how == 26) take_retained(object, bytes);
    else if (how == 27 && bytes % 2) take_shown(object, random_next(state) % NOTICES);
    else if (how == 27) take_opened(object, random_next(state) % NOTICES);
    else if (how == 28) take_multicast(object, bytes);
    else if (how == 29) take_sparse(object, bytes);
    else if (how == 30) take_external(object, bytes);
    else if (how == 31) take_old(object, bytes);
    else if (how == 32) take_old_array(object, bytes);
    else if (how == 33) take_context(object, bytes, true);
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
        case MAPPED: give_mapped(object); break;
        case EXPORTED: give_exported(object, random_next(state) % 2); break;
        case RETAINED: give_retained(object, random_next(state) % 2); break;
        case OPENED: result = CALL(cuIpcCloseMemHandle, object->address); break;
        case MULTICAST: give_multicast(object, random_next(state) % 2); break;
        case SPARSE: give_sparse(object); break;
        case EXTERNAL: give_external(object, random_next(state) % 2); break;
        case OLD: result = CALL(cuMemFree, (CUdeviceptr_v1)object->address); break;
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
static uint64_t nobody_counts[THREADS_MAX], *done = nobody_counts;

/* Memory that other processes see too if the variable names a file for it; otherwise `own`. */
static void *open_shared(const char *variable, void *own, size_t bytes) {
    const char *path = getenv(variable);
    if (!path) return own;
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED);
    close(fd);
    return shared;
}

/* Makes the context of the object's card current; an object that is not in use gets a random card. */
static void choose_card(struct object *object, uint64_t *state) {
    if (!object->kind) object->card = (int)(random_next(state) % (unsigned)cards);
    CHECK_IS(CALL(cuCtxSetCurrent, primary[object->card]), CUDA_SUCCESS);
}

static void take_or_give(struct object *object, uint64_t *state) {
    choose_card(object, state);
    if (object->kind) give(object, state);
    else take(object, state);
}

static void *work(void *seed) {
    struct object objects[OBJECTS] = {0};
    uint64_t state = (uint64_t)(uintptr_t)seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int i = 0; i < operations; i++) {
        take_or_give(&objects[random_next(&state) % OBJECTS], &state);
        __atomic_fetch_add(&done[(uintptr_t)seed % THREADS_MAX], 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < OBJECTS; i++)
        if (objects[i].kind) take_or_give(&objects[i], &state);
    return NULL;
}

/* Waits until there is room for a context on each card. */
static void open_cards(void) {
    open_driver();
    CHECK_IS(CALL(cuInit, 0), CUDA_SUCCESS);
    CHECK_IS(CALL(cuDeviceGetCount, &cards), CUDA_SUCCESS);
    if (cards > CARDS_MAX) cards = CARDS_MAX;
    for (int card = 0; card < cards; card++)
        while (!granted(CALL(cuDevicePrimaryCtxRetain, &primary[card], card)))
            usleep(1000); /* other processes have taken all memory */
    for (int card = 0; card < cards; card++) open_hoard(card);
}

/* Returns when all threads have ended. */
static void soak(uint64_t seed, int threads) {
    pthread_t thread[THREADS_MAX];
    CHECK(threads <= THREADS_MAX);
    open_cards();
    for (int i = 0; i < threads; i++) {
        uint64_t own = seed * THREADS_MAX + (unsigned)i;
        CHECK(!pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)own));
    }
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    for (int card = 0; card < cards; card++) {
        CHECK_IS(CALL(cuCtxSetCurrent, primary[card]), CUDA_SUCCESS);
        CHECK_IS(CALL(cuCtxSynchronize), CUDA_SUCCESS);
    }
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
    done = open_shared("SOAK_COUNT", done, THREADS_MAX * sizeof *done);
    board = open_shared("SOAK_BOARD", board, NOTICES * sizeof *board);
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
