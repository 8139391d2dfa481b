/*
 * What only a driver with a card can answer, asked of whatever driver is there; one answer a line.
 *     questions events     ns that event pairs cost and measure on an idle card
 *     questions captures   which calls spoil another thread's capture in global mode: CALL bare relaxed
 *     questions names      which exported names cuGetProcAddress finds, and whose they are: NAME owner
 *     questions kernels COUNT NS   when kernels of so many ns each were done (CLOCK_REALTIME), and ns
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

static CUresult get_attribute(void) {
    uint64_t bytes;
    return CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
}

static CUresult trim(void) {
    return CALL(cuMemPoolTrimTo, pool, 0);
}

static CUresult graph_attribute(void) {
    uint64_t bytes;
    return CALL(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
}

static CUresult graph_trim(void) {
    return CALL(cuDeviceGraphMemTrim, 0);
}

static CUresult allocate_async(void) {
    return CALL(cuMemAllocAsync, &pointer, MIB, stream);
}

static CUresult free_async(void) {
    return CALL(cuMemFreeAsync, pointer, stream);
}

static CUresult allocate(void) {
    return CALL(cuMemAlloc_v2, &pointer, MIB);
}

static CUresult release(void) {
    return CALL(cuMemFree_v2, pointer);
}

static CUresult ask_memory(void) {
    size_t left, total;
    return CALL(cuMemGetInfo_v2, &left, &total);
}

static CUresult query_event(void) {
    return CALL(cuEventQuery, event);
}

static CUresult record_event(void) {
    return CALL(cuEventRecord, event, stream);
}

static CUresult query_stream(void) {
    return CALL(cuStreamQuery, stream);
}

static CUresult wait_for_stream(void) {
    return CALL(cuStreamSynchronize, stream);
}

static const struct call {
    const char *name;
    CUresult (*call)(void);
    CUresult (*undo)(void); /* outside of the capture */
} calls[] = {
    {"cuMemPoolGetAttribute", get_attribute, NULL},
    {"cuMemPoolTrimTo", trim, NULL},
    {"cuDeviceGetGraphMemAttribute", graph_attribute, NULL},
    {"cuDeviceGraphMemTrim", graph_trim, NULL},
    {"cuMemAllocAsync", allocate_async, free_async},
    {"cuMemAlloc", allocate, release},
    {"cuMemGetInfo", ask_memory, NULL},
    {"cuEventQuery", query_event, NULL},
    {"cuEventRecord", record_event, NULL},
    {"cuStreamQuery", query_stream, NULL},
    {"cuStreamSynchronize", wait_for_stream, NULL},
};

static CUstream captured;

static void *capture(void *barrier) {
    CUgraph graph;
    DO(cuCtxSetCurrent, context);
    DO(cuStreamBeginCapture_v2, captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
    pthread_barrier_wait(barrier); /* here the other thread calls */
    pthread_barrier_wait(barrier);
    return (void *)(intptr_t)CALL(cuStreamEndCapture, captured, &graph);
}

/* What becomes of the call, and of the capture. */
static const char *beside_capture(const struct call *each, int mode) {
    pthread_barrier_t barrier;
    pthread_t thread;
    void *ended;
    pthread_barrier_init(&barrier, NULL, 2);
    CHECK(!pthread_create(&thread, NULL, capture, &barrier));
    pthread_barrier_wait(&barrier);
    DO(cuThreadExchangeStreamCaptureMode, &mode);
    CUresult result = each->call();
    DO(cuThreadExchangeStreamCaptureMode, &mode);
    pthread_barrier_wait(&barrier);
    CHECK(!pthread_join(thread, &ended));
    if (result == CUDA_SUCCESS && each->undo) CHECK_IS(each->undo(), CUDA_SUCCESS);
    return ended ? "spoils" : result != CUDA_SUCCESS ? "refused" : "allowed";
}

static void ask_captures(void) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
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
    CUmodule module;
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
