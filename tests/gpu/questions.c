/*
 * What only a driver with a card can answer, asked of whatever driver is there; one answer a line.
 *     questions events     ns that event pairs cost and measure on an idle card
 *     questions captures   which calls spoil another thread's capture in global mode: CALL bare relaxed
 *     questions names      which exported names cuGetProcAddress finds, and whose they are: NAME owner
 *     questions kernels COUNT NS   when kernels of NS ns each were done (CLOCK_REALTIME), and ns
 *                          between the events around each
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "driver.h"

#define MIB ((uint64_t)1 << 20)
#define TIMES 200

static const char image[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                            ".visible .entry spin_ns(.param .u64 ns) {\n"
                            ".reg .u64 %begun, %now, %past, %ns;\n.reg .pred %on;\n"
                            "ld.param.u64 %ns, [ns];\nmov.u64 %begun, %globaltimer;\n"
                            "again:\nmov.u64 %now, %globaltimer;\nsub.u64 %past, %now, %begun;\n"
                            "setp.lt.u64 %on, %past, %ns;\n@%on bra again;\nret;\n}\n";

static CUcontext context;
static CUstream stream;
static CUmemoryPool pool;
static CUdeviceptr pointer;
static CUevent event;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

static unsigned long long median(uint64_t *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

static uint64_t between(CUevent begin, CUevent end) {
    float ms;
    DO(cuEventElapsedTime, &ms, begin, end);
    return (uint64_t)((double)ms * 1e6);
}

/* ---- events ---- */

static void ask_events(void) {
    static uint64_t recorded[TIMES], passed[TIMES], measured[TIMES];
    CUevent begin;
    DO(cuEventCreate, &begin, 0);
    for (int i = 0; i < TIMES; i++) {
        uint64_t before = clock_ns(CLOCK_MONOTONIC);
        DO(cuEventRecord, begin, stream);
        DO(cuEventRecord, event, stream);
        recorded[i] = clock_ns(CLOCK_MONOTONIC) - before;
        while (CALL(cuEventQuery, event) != CUDA_SUCCESS) continue;
        passed[i] = clock_ns(CLOCK_MONOTONIC) - before;
        measured[i] = between(begin, event);
    }
    printf("recorded_ns %llu\npassed_ns %llu\nmeasured_ns %llu\n", median(recorded, TIMES),
           median(passed, TIMES), median(measured, TIMES));
}

/* ---- captures ---- */

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                  size_t count, CUgraph child);
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *params);

static CUevent begun, extra_event;
static CUmemoryPool extra_pool;
static CUmemGenericAllocationHandle handle;
static CUarray array;
static CUmipmappedArray mipmap;
static CUmodule module, extra_module;
static CUfunction function;
static CUlibrary library;
static CUkernel kernel;
static CUgraph graph;
static CUcontext extra_context;
static CUgraphNode allocation_node, kernel_node, child_node;

/* Where answers go that are not read. */
static struct {
    int number;
    unsigned word;
    size_t size, total;
    uint64_t bytes;
    float ms;
    void *address;
    CUuuid uuid;
    CUdevice device;
    CUdeviceptr base;
    CUcontext context;
    CUgreenCtx green;
    CUmemoryPool pool;
    CUgraph graph;
    CUmemAllocationProp allocation;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUDA_KERNEL_NODE_PARAMS_v2 launch;
    CUDA_MEM_ALLOC_NODE_PARAMS memory;
} told;

/* What a call needs, and what takes back what it did: outside of the capture. */
#define STEP(name, symbol, ...)         \
    static void name(void) {            \
        DO(symbol, __VA_ARGS__);        \
    }

#define POOL {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}
#define SHAPE {.width = 64, .height = 64, .format = 0x20, .channels = 1} /* of floats */

STEP(allocate, cuMemAlloc_v2, &pointer, MIB)
STEP(release, cuMemFree_v2, pointer)
STEP(free_async, cuMemFreeAsync, pointer, stream)
STEP(make_event, cuEventCreate, &extra_event, 0)
STEP(end_event, cuEventDestroy_v2, extra_event)
STEP(make_pool, cuMemPoolCreate, &extra_pool, &(CUmemPoolProps)POOL)
STEP(make_handle, cuMemCreate, &handle, 2 * MIB, &(CUmemAllocationProp)POOL, 0)
STEP(release_handle, cuMemRelease, handle)
STEP(make_array, cuArrayCreate_v2, &array, &(CUDA_ARRAY_DESCRIPTOR)SHAPE)
STEP(end_array, cuArrayDestroy, array)
STEP(make_mipmap, cuMipmappedArrayCreate, &mipmap, &(CUDA_ARRAY3D_DESCRIPTOR)SHAPE, 1)
STEP(load_module, cuModuleLoadData, &extra_module, image)
STEP(load_library, cuLibraryLoadData, &library, image, NULL, NULL, 0, NULL, NULL, 0)
STEP(unload_library, cuLibraryUnload, library)
STEP(retain_primary, cuDevicePrimaryCtxRetain, &told.context, 0)
STEP(push, cuCtxPushCurrent_v2, context)
STEP(pop, cuCtxPopCurrent_v2, &told.context)

static void make_context(void) {
    DO(cuCtxCreate_v2, &extra_context, 0, 0);
    pop();
}

static void load_kernel(void) {
    load_library();
    DO(cuLibraryGetKernel, &kernel, library, "spin_ns");
}

static void make_graph(void) {
    static uint64_t ns;
    static void *parameters[] = {&ns};
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.pool = POOL, .bytes = MIB};
    CUDA_KERNEL_NODE_PARAMS_v2 launch = {function, 1, 1, 1, 32, 1, 1, 0, parameters, NULL, NULL, NULL};
    CUgraph child;
    DO(cuGraphCreate, &graph, 0);
    DO(cuGraphCreate, &child, 0);
    DO(cuGraphAddMemAllocNode, &allocation_node, graph, NULL, 0, &memory);
    DO(cuGraphAddKernelNode, &kernel_node, graph, NULL, 0, &launch);
    DO(cuGraphAddChildGraphNode, &child_node, graph, NULL, 0, child);
}

/* Makes the objects that the calls below use. */
static void prepare_captures(void) {
    DO(cuEventCreate, &begun, 0);
    DO(cuEventRecord, begun, stream);
    DO(cuEventRecord, event, stream);
    DO(cuStreamSynchronize, stream);
    DO(cuModuleLoadData, &module, image);
    DO(cuModuleGetFunction, &function, module, "spin_ns");
    make_graph();
}

#define ASK(symbol, ...)                  \
    static CUresult ask_##symbol(void) {  \
        return CALL(symbol, __VA_ARGS__); \
    }

ASK(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &told.bytes)
ASK(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &(uint64_t){0})
ASK(cuMemPoolTrimTo, pool, 0)
ASK(cuMemPoolDestroy, extra_pool)
ASK(cuDeviceGetDefaultMemPool, &told.pool, 0)
ASK(cuDeviceGetMemPool, &told.pool, 0)
ASK(cuDeviceSetMemPool, 0, pool)
ASK(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &told.bytes)
ASK(cuDeviceGraphMemTrim, 0)
ASK(cuMemAllocAsync, &pointer, MIB, stream)
ASK(cuMemAlloc_v2, &pointer, MIB)
ASK(cuMemAllocManaged, &pointer, MIB, 1)
ASK(cuMemFree_v2, pointer)
ASK(cuMemGetInfo_v2, &told.size, &told.total)
ASK(cuPointerGetAttribute, &told.number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)
ASK(cuMemGetAddressRange_v2, &told.base, &told.size, pointer)
ASK(cuMemGetAllocationPropertiesFromHandle, &told.allocation, handle)
ASK(cuMemRelease, handle)
ASK(cuArray3DGetDescriptor_v2, &told.shape, array)
ASK(cuArrayDestroy, array)
ASK(cuMipmappedArrayDestroy, mipmap)
ASK(cuModuleUnload, extra_module)
ASK(cuModuleGetLoadingMode, &told.number)
ASK(cuLibraryUnload, library)
ASK(cuKernelGetAttribute, &told.number, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, 0)
ASK(cuFuncGetAttribute, &told.number, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function)
ASK(cuGraphGetNodes, graph, NULL, &told.size)
ASK(cuGraphNodeGetType, kernel_node, &told.number)
ASK(cuGraphKernelNodeGetParams, kernel_node, &told.launch)
ASK(cuGraphKernelNodeGetParams_v2, kernel_node, &told.launch)
ASK(cuGraphMemAllocNodeGetParams, allocation_node, &told.memory)
ASK(cuGraphChildGraphNodeGetGraph, child_node, &told.graph)
ASK(cuCtxDestroy_v2, extra_context)
ASK(cuCtxGetApiVersion, context, &told.word)
ASK(cuCtxGetCurrent, &told.context)
ASK(cuCtxGetDevice, &told.device)
ASK(cuCtxPushCurrent_v2, context)
ASK(cuCtxPopCurrent_v2, &told.context)
ASK(cuDevicePrimaryCtxGetState, 0, &told.word, &told.number)
ASK(cuDevicePrimaryCtxRelease_v2, 0)
ASK(cuDeviceGetAttribute, &told.number, 1, 0)
ASK(cuDeviceGetUuid, &told.uuid, 0)
ASK(cuDeviceGetUuid_v2, &told.uuid, 0)
ASK(cuDriverGetVersion, &told.number)
ASK(cuGetProcAddress, "cuMemAlloc", &told.address, 11030, 0)
ASK(cuInit, 0)
ASK(cuEventCreate, &extra_event, 0)
ASK(cuEventDestroy_v2, extra_event)
ASK(cuEventElapsedTime, &told.ms, begun, event)
ASK(cuEventQuery, event)
ASK(cuEventRecord, extra_event, stream)
ASK(cuStreamGetCtx, stream, &told.context)
ASK(cuStreamGetCtx_v2, stream, &told.context, &told.green)
ASK(cuStreamGetFlags, stream, &told.word)
ASK(cuStreamIsCapturing, stream, &told.number)
ASK(cuStreamQuery, stream)
ASK(cuStreamSynchronize, stream)

static const struct call {
    const char *name;
    CUresult (*call)(void);
    void (*before)(void), (*undo)(void); /* outside of the capture; undo: of a call that was granted */
} calls[] = {
#define ROW(symbol, before, undo) {#symbol, ask_##symbol, before, undo}
    ROW(cuMemPoolGetAttribute, NULL, NULL),
    ROW(cuMemPoolSetAttribute, NULL, NULL),
    ROW(cuMemPoolTrimTo, NULL, NULL),
    ROW(cuMemPoolDestroy, make_pool, NULL),
    ROW(cuDeviceGetDefaultMemPool, NULL, NULL),
    ROW(cuDeviceGetMemPool, NULL, NULL),
    ROW(cuDeviceSetMemPool, NULL, NULL),
    ROW(cuDeviceGetGraphMemAttribute, NULL, NULL),
    ROW(cuDeviceGraphMemTrim, NULL, NULL),
    ROW(cuMemAllocAsync, NULL, free_async),
    ROW(cuMemAlloc_v2, NULL, release),
    ROW(cuMemAllocManaged, NULL, release),
    ROW(cuMemFree_v2, allocate, NULL),
    ROW(cuMemGetInfo_v2, NULL, NULL),
    ROW(cuPointerGetAttribute, allocate, release),
    ROW(cuMemGetAddressRange_v2, allocate, release),
    ROW(cuMemGetAllocationPropertiesFromHandle, make_handle, release_handle),
    ROW(cuMemRelease, make_handle, NULL),
    ROW(cuArray3DGetDescriptor_v2, make_array, end_array),
    ROW(cuArrayDestroy, make_array, NULL),
    ROW(cuMipmappedArrayDestroy, make_mipmap, NULL),
    ROW(cuModuleUnload, load_module, NULL),
    ROW(cuModuleGetLoadingMode, NULL, NULL),
    ROW(cuLibraryUnload, load_library, NULL),
    ROW(cuKernelGetAttribute, load_kernel, unload_library),
    ROW(cuFuncGetAttribute, NULL, NULL),
    ROW(cuGraphGetNodes, NULL, NULL),
    ROW(cuGraphNodeGetType, NULL, NULL),
    ROW(cuGraphKernelNodeGetParams, NULL, NULL),
    ROW(cuGraphKernelNodeGetParams_v2, NULL, NULL),
    ROW(cuGraphMemAllocNodeGetParams, NULL, NULL),
    ROW(cuGraphChildGraphNodeGetGraph, NULL, NULL),
    ROW(cuCtxDestroy_v2, make_context, NULL),
    ROW(cuCtxGetApiVersion, NULL, NULL),
    ROW(cuCtxGetCurrent, NULL, NULL),
    ROW(cuCtxGetDevice, NULL, NULL),
    ROW(cuCtxPushCurrent_v2, NULL, pop),
    ROW(cuCtxPopCurrent_v2, NULL, push),
    ROW(cuDevicePrimaryCtxGetState, NULL, NULL),
    ROW(cuDevicePrimaryCtxRelease_v2, retain_primary, NULL),
    ROW(cuDeviceGetAttribute, NULL, NULL),
    ROW(cuDeviceGetUuid, NULL, NULL),
    ROW(cuDeviceGetUuid_v2, NULL, NULL),
    ROW(cuDriverGetVersion, NULL, NULL),
    ROW(cuGetProcAddress, NULL, NULL),
    ROW(cuInit, NULL, NULL),
    ROW(cuEventCreate, NULL, end_event),
    ROW(cuEventDestroy_v2, make_event, NULL),
    ROW(cuEventElapsedTime, NULL, NULL),
    ROW(cuEventQuery, NULL, NULL),
    ROW(cuEventRecord, make_event, end_event),
    ROW(cuStreamGetCtx, NULL, NULL),
    ROW(cuStreamGetCtx_v2, NULL, NULL),
    ROW(cuStreamGetFlags, NULL, NULL),
    ROW(cuStreamIsCapturing, NULL, NULL),
    ROW(cuStreamQuery, NULL, NULL),
    ROW(cuStreamSynchronize, NULL, NULL),
};

static CUstream captured;

static void *capture(void *barrier) {
    CUgraph made;
    DO(cuCtxSetCurrent, context);
    DO(cuStreamBeginCapture_v2, captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
    pthread_barrier_wait(barrier); /* here the other thread calls */
    pthread_barrier_wait(barrier);
    return (void *)(intptr_t)CALL(cuStreamEndCapture, captured, &made);
}

/* What becomes of the call, and of the capture. */
static const char *beside_capture(const struct call *each, int mode) {
    pthread_barrier_t barrier;
    pthread_t thread;
    void *ended;
    if (each->before) each->before();
    pthread_barrier_init(&barrier, NULL, 2);
    CHECK(!pthread_create(&thread, NULL, capture, &barrier));
    pthread_barrier_wait(&barrier);
    DO(cuThreadExchangeStreamCaptureMode, &mode);
    CUresult result = each->call();
    DO(cuThreadExchangeStreamCaptureMode, &mode);
    pthread_barrier_wait(&barrier);
    CHECK(!pthread_join(thread, &ended));
    if (result == CUDA_SUCCESS && each->undo) each->undo();
    return ended ? "spoils" : result != CUDA_SUCCESS ? "refused" : "allowed";
}

static void ask_captures(void) {
    prepare_captures();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!dlsym(driver, calls[i].name)) continue; /* a driver that is older than the call */
        const char *bare = beside_capture(&calls[i], CU_STREAM_CAPTURE_MODE_GLOBAL);
        printf("%s %s %s\n", calls[i].name, bare,
               beside_capture(&calls[i], CU_STREAM_CAPTURE_MODE_RELAXED));
    }
}

/* ---- names ---- */

static void ask_names(void) {
    static const char *const names[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuLaunchKernel_ptsz",
                                        "cuMemAllocAsync_ptsz", "cuCtxCreate_v3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = NULL;
        Dl_info info;
        CALL(cuGetProcAddress_v2, names[i], &found, 13000, 0, NULL);
        bool ours = found && dladdr(found, &info) && strstr(info.dli_fname, "libmizar");
        printf("%s %s\n", names[i], !found ? "nobody" : ours ? "shim" : "driver");
    }
}

/* ---- kernels ---- */

static void ask_kernels(int count, uint64_t ns) {
    void *parameters[] = {&ns};
    CUfunction spin;
    CUevent begin;
    DO(cuModuleLoadData, &module, image);
    DO(cuModuleGetFunction, &spin, module, "spin_ns");
    DO(cuEventCreate, &begin, 0);
    for (int i = 0; i < count; i++) {
        DO(cuEventRecord, begin, stream);
        DO(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
        DO(cuEventRecord, event, stream);
        DO(cuStreamSynchronize, stream);
        printf("%llu %llu\n", (unsigned long long)clock_ns(CLOCK_REALTIME),
               (unsigned long long)between(begin, event));
    }
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    open_driver();
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &context, 0);
    DO(cuCtxSetCurrent, context);
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    DO(cuStreamCreate, &captured, CU_STREAM_NON_BLOCKING);
    DO(cuDeviceGetDefaultMemPool, &pool, 0);
    DO(cuEventCreate, &event, 0);
    if (!strcmp(arguments[1], "events")) ask_events();
    if (!strcmp(arguments[1], "captures")) ask_captures();
    if (!strcmp(arguments[1], "names")) ask_names();
    if (!strcmp(arguments[1], "kernels"))
        ask_kernels(atoi(arguments[2]), strtoull(arguments[3], NULL, 10));
    return 0;
}
