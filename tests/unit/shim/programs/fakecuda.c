/*
 * A CUDA driver and NVML that do next to nothing: calls return at once and are counted, pointers
 * are numbers. What the shim adds can be measured on it, and which entry it called can be seen.
 * `fake` is how a test sets it up and looks inside.
 */
#include "fakecuda.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cuda_api.h"

#define MIB ((uint64_t)1 << 20)

struct fake fake = {.devices = 2, .total = 16384 * MIB, .pitch_unit = 512,
                    .next = 1 << 21, .next_large = (uint64_t)1 << 31};

static struct CUctx_st {
    CUdevice device;
    int references;
    int ends; /* it is about to, or has */
} contexts[2 * FAKE_DEVICES]; /* primary ones, then one made by cuCtxCreate for each device */
/* A cache line of its own, so that threads with a stream each do not meet. */
static struct CUstream_st {
    CUcontext context;
    uint64_t launches;
    unsigned flags;
    int ended;
} __attribute__((aligned(64))) streams[FAKE_DEVICES]; /* the default ones */
static __thread CUcontext current;
static CUcontext stays_there; /* the context of a call that does not return */

static __attribute__((noinline, cold)) void stay(void) {
    if (__atomic_exchange_n(&fake.is_in, 1, __ATOMIC_ACQ_REL)) return; /* another thread is in it */
    __atomic_store_n(&stays_there, current, __ATOMIC_RELAXED);
    while (__atomic_load_n(&fake.stays_in, __ATOMIC_ACQUIRE)) sched_yield();
    __atomic_store_n(&stays_there, NULL, __ATOMIC_RELAXED);
    __atomic_store_n(&fake.is_in, 0, __ATOMIC_RELEASE);
}

static inline void called(enum fake_call call) {
    fake.calls[call]++;
    unsigned in = __atomic_load_n(&fake.stays_in, __ATOMIC_ACQUIRE);
    if (__builtin_expect(in == call + 1, 0)) stay();
}

#define CALLED(symbol)                                \
    do {                                              \
        if (!fake.uncounted) called(FAKE_##symbol);   \
    } while (0)

/* ---- devices and contexts ---- */

EXPORT CUresult cuInit(unsigned flags) {
    CALLED(cuInit);
    const char *devices = getenv("FAKE_DEVICES");
    if (devices) fake.devices = atoi(devices);
    for (int i = 0; i < 2 * FAKE_DEVICES; i++) contexts[i].device = i % FAKE_DEVICES;
    for (int i = 0; i < FAKE_DEVICES; i++) streams[i].context = &contexts[i];
    return (CUresult)flags;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = fake.devices;
    return CUDA_SUCCESS;
}

/* Card k of the machine; FAKE_ORDER="10" lets device 0 be card 1, as CUDA_VISIBLE_DEVICES does. */
static int card_of(CUdevice device) {
    const char *order = getenv("FAKE_ORDER");
    return order ? order[device] - '0' : device;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[0] = 0xab;
    uuid->bytes[15] = (unsigned char)card_of(device);
    return device < fake.devices ? CUDA_SUCCESS : 101;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

void fake_use(int device) {
    current = &contexts[device];
}

static CUresult make(CUcontext *context, int which) {
    if (fake.fail) return fake.fail;
    contexts[which].ends = 0;
    if (!contexts[which].references++) fake.contexts++;
    *context = &contexts[which];
    return CUDA_SUCCESS;
}

/* The result of calls that free something. */
static CUresult freed(void) {
    return fake.frees_nothing ? 999 : fake.fail;
}

static void count_stale(const struct CUctx_st *context) {
    if (context && __atomic_load_n(&context->ends, __ATOMIC_ACQUIRE))
        __atomic_add_fetch(&fake.stale, 1, __ATOMIC_RELAXED);
}

/* From here on no thread may use the context, unless others hold references to it. */
static void begin_end(CUcontext context, int references) {
    if (context->references > references) return;
    __atomic_store_n(&context->ends, 1, __ATOMIC_RELEASE);
    if (__atomic_load_n(&stays_there, __ATOMIC_RELAXED) == context) count_stale(context);
}

static CUresult unmake(CUcontext context, int references) {
    if (fake.frees_nothing) context->ends = 0;
    if (fake.frees_nothing) return 999;
    context->references -= references;
    if (!context->references) fake.contexts--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CALLED(cuDevicePrimaryCtxRetain);
    return make(context, device);
}

#define RELEASE(symbol)                        \
    EXPORT CUresult symbol(CUdevice device) {  \
        begin_end(&contexts[device], 1);       \
        CALLED(symbol);                        \
        return unmake(&contexts[device], 1);   \
    }
#define RESET(symbol)                                                        \
    EXPORT CUresult symbol(CUdevice device) {                                \
        begin_end(&contexts[device], contexts[device].references);           \
        CALLED(symbol);                                                      \
        return unmake(&contexts[device], contexts[device].references);       \
    }
#define DESTROY(symbol)                         \
    EXPORT CUresult symbol(CUcontext context) { \
        begin_end(context, 1);                  \
        CALLED(symbol);                         \
        return unmake(context, 1);              \
    }
RELEASE(cuDevicePrimaryCtxRelease)
RELEASE(cuDevicePrimaryCtxRelease_v2)
RESET(cuDevicePrimaryCtxReset)
RESET(cuDevicePrimaryCtxReset_v2)
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
DESTROY(cuCtxDetach)

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = contexts[device].references > 0;
    return CUDA_SUCCESS;
}

static bool is_green(CUcontext context) {
    return context < contexts || context >= contexts + 2 * FAKE_DEVICES;
}

static CUresult create(CUcontext *context, CUdevice device) {
    CUresult result = make(context, FAKE_DEVICES + device);
    if (result == CUDA_SUCCESS) current = *context;
    return result;
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    CALLED(cuCtxCreate);
    (void)flags;
    return create(context, device);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    CALLED(cuCtxCreate_v2);
    (void)flags;
    return create(context, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned flags,
                               CUdevice device) {
    CALLED(cuCtxCreate_v3);
    (void)affinities, (void)count, (void)flags;
    return create(context, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags,
                               CUdevice device) {
    CALLED(cuCtxCreate_v4);
    (void)parameters, (void)flags;
    return create(context, device);
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                                 unsigned flags) {
    CUcontext primary, view = calloc(1, sizeof *view); /* a handle that is never used again */
    CALLED(cuGreenCtxCreate);
    (void)resources, (void)flags;
    view->device = device;
    *green = (CUgreenCtx)view;
    return make(&primary, device);
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    CALLED(cuGreenCtxDestroy);
    return unmake(&contexts[((CUcontext)green)->device], 1);
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    CALLED(cuCtxFromGreenCtx);
    *context = (CUcontext)green;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    *version = 3020;
    return context->references > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    CALLED(cuCtxSetLimit);
    (void)limit, (void)value;
    return fake.fail;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    *value = attribute == 16 ? 4 : attribute == 39 ? 1024 : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current->device;
    return CUDA_SUCCESS;
}

static __thread CUcontext pushed[8];
static __thread unsigned depth;

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    pushed[depth++] = current;
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    *context = current;
    current = pushed[--depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    *stream = aligned_alloc(64, sizeof **stream);
    **stream = (struct CUstream_st){.context = current, .flags = flags};
    return CUDA_SUCCESS;
}

/* 0, 1 and 2 are the current context's default streams. */
static CUstream stream_of(CUstream stream) {
    return (uintptr_t)stream > 2 ? stream : &streams[current->device];
}

static void count_stale_stream(CUstream stream) {
    if ((uintptr_t)stream > 2 && __atomic_load_n(&stream->ended, __ATOMIC_ACQUIRE))
        __atomic_add_fetch(&fake.stale, 1, __ATOMIC_RELAXED);
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    if ((uintptr_t)stream <= 2 && !current) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stream_of(stream)->context;
    return fake.hides_green && is_green(*context) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green) {
    *context = stream_of(stream)->context;
    *green = is_green(*context) ? (CUgreenCtx)*context : NULL;
    if (*green) *context = &contexts[(*context)->device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
    *flags = stream_of(stream)->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context) {
    return cuStreamGetCtx(stream, context);
}

/* ---- launches: they take no time, unless a test says so ---- */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t free_at(void) {
    uint64_t now = now_ns();
    return fake.free_at > now ? fake.free_at : now;
}

static void take_time(void) {
    if (fake.launch_takes) fake.free_at = free_at() + fake.launch_takes;
}

#define LAUNCH(symbol, parameters, stream)  \
    EXPORT CUresult symbol parameters {     \
        CALLED(symbol);                     \
        stream_of(stream)->launches++;      \
        take_time();                        \
        return fake.fail;                   \
    }
#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define KERNEL (CUfunction f, SHAPE, unsigned shared, CUstream stream, void **p, void **extra)
#define COOPERATIVE (CUfunction f, SHAPE, unsigned shared, CUstream stream, void **p)
#define CONFIGURED (const CUlaunchConfig *config, CUfunction f, void **p, void **extra)
#define SEVERAL (CUDA_LAUNCH_PARAMS * list, unsigned count, unsigned flags)
LAUNCH(cuLaunchKernel, KERNEL, stream)
LAUNCH(cuLaunchKernel_ptsz, KERNEL, stream)
LAUNCH(cuLaunchKernelEx, CONFIGURED, config->stream)
LAUNCH(cuLaunchKernelEx_ptsz, CONFIGURED, config->stream)
LAUNCH(cuLaunchCooperativeKernel, COOPERATIVE, stream)
LAUNCH(cuLaunchCooperativeKernel_ptsz, COOPERATIVE, stream)
LAUNCH(cuLaunchCooperativeKernelMultiDevice, SEVERAL, list->stream)
LAUNCH(cuLaunch, (CUfunction f), NULL)
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), NULL)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), stream)
LAUNCH(cuGraphLaunch, (CUgraphExec exec, CUstream stream), stream)
LAUNCH(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), stream)

/* ---- copies and memsets: they touch nothing ---- */

#define COPY_EACH(symbol, stream, waits, kind, count, bytes, parameters, arguments) \
    EXPORT CUresult symbol parameters {                                             \
        CALLED(symbol);                                                             \
        return fake.fail;                                                           \
    }
#include "base/copies.def"

/* ---- stalls: nothing waits ---- */

#define STALL_EACH(symbol, stream, over, parameters, arguments) \
    EXPORT CUresult symbol parameters {                         \
        CALLED(symbol);                                         \
        return fake.fail;                                       \
    }
#include "base/stalls.def"

EXPORT CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
    CALLED(cuCtxWaitEvent);
    (void)context, (void)event;
    return fake.fail;
}

EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    CALLED(cuGreenCtxWaitEvent);
    (void)green, (void)event;
    return fake.fail;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array) {
    *descriptor = (CUDA_ARRAY3D_DESCRIPTOR){64, 64, 64, 0x20, 2, 0}; /* two times four bytes */
    return CUDA_SUCCESS;
}

/* ---- captures: of any stream at once ---- */

#define BEGIN(symbol, parameters)                    \
    EXPORT CUresult symbol parameters {              \
        CALLED(symbol);                              \
        if (!fake.fail) fake.capturing = 1;          \
        return fake.fail;                            \
    }
#define END(symbol, parameters)                      \
    EXPORT CUresult symbol parameters {              \
        CALLED(symbol);                              \
        if (!fake.fail) fake.capturing = 0;          \
        return fake.fail;                            \
    }
BEGIN(cuStreamBeginCapture, (CUstream stream))
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode))
BEGIN(cuStreamBeginCaptureToGraph, CAPTURE_TO_GRAPH)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, CAPTURE_TO_GRAPH)
BEGIN(cuStreamBeginRecaptureToGraph, CAPTURE_AGAIN)
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, CAPTURE_AGAIN)
BEGIN(cuStreamBeginCaptureToCig, (CUstream stream, void *parameters))
BEGIN(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, void *parameters))
END(cuStreamEndCapture, (CUstream stream, CUgraph *graph))
END(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph))
END(cuStreamEndCaptureToCig, (CUstream stream))
END(cuStreamEndCaptureToCig_ptsz, (CUstream stream))
#pragma GCC diagnostic pop

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int own;
    int before = own;
    own = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- events: they happen once the card is free ---- */

struct CUevent_st {
    uint64_t at; /* ns; 0: not recorded */
    CUcontext context;
};

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    if (*event) (*event)->context = current;
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuEventDestroy(CUevent event) {
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    return cuEventDestroy(event);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    CALLED(cuEventRecord);
    count_stale_stream(stream);
    event->at = free_at();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return cuEventRecord(event, stream);
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}

EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) {
    return cuEventRecordWithFlags(event, stream, flags);
}

EXPORT CUresult cuEventQuery(CUevent event) {
    count_stale(event->context);
    bool ahead = fake.free_at && event->at > now_ns();
    return fake.busy || ahead || event == fake.pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    *milliseconds = (float)((double)(int64_t)(end->at - start->at) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime(milliseconds, start, end);
}

/* It is not freed, so that later uses of it are detected. */
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    __atomic_store_n(&stream->ended, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

/* ---- memory ---- */

/* Never the same address twice; small allocations are adjacent, large ones in pages of their own. */
static CUresult take(CUdeviceptr *pointer, uint64_t bytes) {
    if (fake.fail) return fake.fail;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *pointer = bytes > MIB ? __atomic_fetch_add(&fake.next_large, (bytes + 2 * MIB - 1) & -2 * MIB,
                                                __ATOMIC_RELAXED)
                           : __atomic_fetch_add(&fake.next, (bytes + 511) & -512ull,
                                                __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

/* Addresses of 32 bits, away from the others. */
static CUresult take_v1(CUdeviceptr_v1 *pointer, uint64_t bytes) {
    static uint64_t next = 1 << 30;
    CUdeviceptr unused;
    CUresult result = fake.card_full ? CUDA_ERROR_OUT_OF_MEMORY : take(&unused, bytes);
    if (result == CUDA_SUCCESS) *pointer = (CUdeviceptr_v1)next;
    next += (bytes + 2 * MIB - 1) & -2 * MIB;
    return result;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes) {
    CALLED(cuMemAlloc);
    return take_v1(pointer, bytes);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    CALLED(cuMemAlloc_v2);
    return fake.card_full ? CUDA_ERROR_OUT_OF_MEMORY : take(pointer, bytes);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width,
                                unsigned height, unsigned element) {
    CALLED(cuMemAllocPitch);
    (void)element;
    *pitch = (unsigned)((width + fake.pitch_unit - 1) / fake.pitch_unit * fake.pitch_unit);
    return take_v1(pointer, (uint64_t)*pitch * height);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                   unsigned element) {
    CALLED(cuMemAllocPitch_v2);
    (void)element;
    *pitch = (width + fake.pitch_unit - 1) / fake.pitch_unit * fake.pitch_unit;
    return fake.card_full ? CUDA_ERROR_OUT_OF_MEMORY : take(pointer, *pitch * height);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    CALLED(cuMemAllocManaged);
    (void)flags;
    CUresult result = take(pointer, bytes);
    if (result == CUDA_SUCCESS) fake.managed = *pointer;
    return result;
}

/* ---- code ---- */

static CUresult load(void *made) {
    static uint64_t number;
    if (fake.fail) return fake.fail;
    fake.others += fake.module_bytes;
    *(uint64_t *)made = ++number << 12;
    return CUDA_SUCCESS;
}

static CUresult unload(void) {
    if (freed() == CUDA_SUCCESS) fake.others -= fake.module_bytes;
    return freed();
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    CALLED(cuModuleLoad);
    (void)path;
    return load(module);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CALLED(cuModuleLoadData);
    (void)image;
    return load(module);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                   int *options, void **values) {
    CALLED(cuModuleLoadDataEx);
    (void)image, (void)count, (void)options, (void)values;
    return load(module);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    CALLED(cuModuleLoadFatBinary);
    (void)image;
    return load(module);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    CALLED(cuModuleUnload);
    (void)module;
    return unload();
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values,
                                  unsigned jits, int *options, void **values, unsigned count) {
    CALLED(cuLibraryLoadData);
    (void)code, (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    return load(library);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit,
                                      void **jit_values, unsigned jits, int *options,
                                      void **values, unsigned count) {
    CALLED(cuLibraryLoadFromFile);
    (void)path, (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    return load(library);
}

/* Every time it is asked for it takes memory once more. */
EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    CALLED(cuLibraryGetModule);
    (void)library;
    return load(module);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    CALLED(cuLibraryUnload);
    (void)library;
    return unload();
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode) {
    *mode = fake.lazy ? 2 : 1;
    return fake.lazy < 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CALLED(cuModuleGetFunction);
    (void)name;
    *function = (CUfunction)module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetGlobal(CUdeviceptr_v1 *pointer, unsigned *bytes, CUmodule module,
                                  const char *name) {
    CALLED(cuModuleGetGlobal);
    (void)pointer, (void)bytes, (void)module, (void)name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                                     const char *name) {
    CALLED(cuModuleGetGlobal_v2);
    (void)pointer, (void)bytes, (void)module, (void)name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                                   const char *name) {
    CALLED(cuLibraryGetGlobal);
    (void)pointer, (void)bytes, (void)library, (void)name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CALLED(cuKernelGetFunction);
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CALLED(cuLibraryGetKernel);
    (void)name;
    *kernel = (CUkernel)library;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
    (void)kernel, (void)device;
    if (attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES) *value = fake.kernel_local_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncLoad(CUfunction function) {
    CALLED(cuFuncLoad);
    (void)function;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    CALLED(cuFuncGetAttribute);
    (void)function;
    if (attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES) *value = fake.local_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    CALLED(cuFuncSetAttribute);
    (void)value, (void)attribute, (void)function;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                            int threads, size_t shared_bytes) {
    CALLED(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    (void)blocks, (void)function, (void)threads, (void)shared_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                                     CUfunction function,
                                                                     int threads,
                                                                     size_t shared_bytes,
                                                                     unsigned flags) {
    CALLED(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    (void)blocks, (void)function, (void)threads, (void)shared_bytes, (void)flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                                 CUoccupancyB2DSize size, size_t shared_bytes,
                                                 int most) {
    CALLED(cuOccupancyMaxPotentialBlockSize);
    (void)grid, (void)block, (void)function, (void)size, (void)shared_bytes, (void)most;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block,
                                                          CUfunction function,
                                                          CUoccupancyB2DSize size,
                                                          size_t shared_bytes, int most,
                                                          unsigned flags) {
    CALLED(cuOccupancyMaxPotentialBlockSizeWithFlags);
    (void)grid, (void)block, (void)function, (void)size, (void)shared_bytes, (void)most;
    (void)flags;
    return CUDA_SUCCESS;
}

/* ---- pools: they keep what was freed until the program waits ---- */

static uint64_t rounded(uint64_t bytes) {
    uint64_t grain = fake.pool_grain ? fake.pool_grain : 512;
    return (bytes + grain - 1) / grain * grain;
}

/* The first few allocations have their sizes kept; more than that are without a size. */
static CUresult take_pooled(CUdeviceptr *pointer, uint64_t bytes) {
    if (fake.card_full && !fake.capturing) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = take(pointer, bytes);
    if (result != CUDA_SUCCESS || fake.capturing) return result;
    for (int i = 0; i < FAKE_LIVE; i++) {
        if (fake.live_bytes[i]) continue;
        fake.live_bytes[i] = bytes;
        fake.live_pointers[i] = *pointer;
        fake.pool_live += bytes;
        if (fake.pool_reserved < fake.pool_live) fake.pool_reserved = rounded(fake.pool_live);
        break;
    }
    return CUDA_SUCCESS;
}

static void give_pooled(CUdeviceptr pointer) {
    if (!fake.pool_live) return;
    for (int i = 0; i < FAKE_LIVE; i++) {
        if (fake.live_pointers[i] != pointer) continue;
        fake.pool_live -= fake.live_bytes[i];
        fake.live_bytes[i] = fake.live_pointers[i] = 0;
        return;
    }
}

static CUresult wait_for_all(void) {
    if (!fake.pool_keeps) fake.pool_reserved = rounded(fake.pool_live);
    return CUDA_SUCCESS;
}

#define TAKE_ASYNC(symbol)                                                        \
    EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUstream stream) { \
        CALLED(symbol);                                                           \
        (void)stream;                                                             \
        return take_pooled(pointer, bytes);                                       \
    }
#define TAKE_FROM_POOL(symbol)                                                   \
    EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, \
                           CUstream stream) {                                    \
        CALLED(symbol);                                                          \
        (void)pool, (void)stream;                                                \
        return take_pooled(pointer, bytes);                                      \
    }
#define GIVE_ASYNC(symbol)                                          \
    EXPORT CUresult symbol(CUdeviceptr pointer, CUstream stream) {  \
        CALLED(symbol);                                             \
        (void)stream;                                               \
        if (fake.keeps_managed && pointer == fake.managed)          \
            return CUDA_ERROR_INVALID_VALUE;                        \
        if (!fake.fail) give_pooled(pointer);                       \
        return fake.fail;                                           \
    }
TAKE_ASYNC(cuMemAllocAsync)
TAKE_ASYNC(cuMemAllocAsync_ptsz)
TAKE_FROM_POOL(cuMemAllocFromPoolAsync)
TAKE_FROM_POOL(cuMemAllocFromPoolAsync_ptsz)
GIVE_ASYNC(cuMemFreeAsync)
GIVE_ASYNC(cuMemFreeAsync_ptsz)

static struct CUmemPoolHandle_st {
    int ended;
} pools[8];
static int pools_made;

static void count_stale_pool(const struct CUmemPoolHandle_st *pool) {
    if (pool && __atomic_load_n(&pool->ended, __ATOMIC_ACQUIRE))
        __atomic_add_fetch(&fake.stale, 1, __ATOMIC_RELAXED);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    *pool = &pools[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    if (device < 0 || device >= fake.devices) return 101;
    return cuDeviceGetMemPool(pool, device);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    (void)device, (void)pool;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    (void)attribute, (void)value;
    count_stale_pool(pool);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    CALLED(cuMemPoolCreate);
    (void)props;
    *pool = &pools[4 + pools_made++ % 4];
    (*pool)->ended = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CALLED(cuMemPoolDestroy);
    __atomic_store_n(&pool->ended, 1, __ATOMIC_RELEASE);
    return wait_for_all();
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CALLED(cuMemPoolTrimTo);
    (void)keep;
    count_stale_pool(pool);
    if (fake.pool_keeps) fake.pool_reserved = rounded(fake.pool_live);
    return fake.calls[FAKE_cuMemPoolTrimTo] > 1000 ? 1 : CUDA_SUCCESS; /* nothing without a wait */
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CALLED(cuMemPoolGetAttribute);
    count_stale_pool(pool);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = fake.pool_threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = fake.pool_reserved; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = fake.pool_live; break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
        *(int *)value = 1;
        return fake.pool_location ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
        *(int *)value = fake.pool_location;
        return fake.pool_location ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
    (void)stream;
    return wait_for_all();
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
                                       CUmemPoolPtrExportData *data) {
    CALLED(cuMemPoolImportPointer);
    (void)pool, (void)data;
    return take(pointer, MIB);
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    count_stale_stream(stream);
    *status = fake.capturing;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) {
    return cuStreamIsCapturing(stream, status);
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    CALLED(cuStreamSynchronize);
    (void)stream;
    return wait_for_all();
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    CALLED(cuStreamSynchronize_ptsz);
    (void)stream;
    return wait_for_all();
}

EXPORT CUresult cuCtxSynchronize(void) {
    CALLED(cuCtxSynchronize);
    return wait_for_all();
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    CALLED(cuCtxSynchronize_v2);
    (void)context;
    return wait_for_all();
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    CALLED(cuEventSynchronize);
    (void)event;
    return wait_for_all();
}

/* ---- physical memory by handle ---- */

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags) {
    CALLED(cuMemCreate);
    (void)prop, (void)flags;
    return take(handle, bytes);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    CALLED(cuMemRelease);
    (void)handle;
    return freed();
}

#define MAPPINGS 64

/* The newest ones, and what is mapped there. */
static struct {
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
} mapped[MAPPINGS];
static unsigned mapped_last;

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CALLED(cuMemMap);
    (void)bytes, (void)offset, (void)flags;
    mapped_last = (mapped_last + 1) % MAPPINGS;
    mapped[mapped_last].pointer = pointer;
    mapped[mapped_last].handle = handle;
    return fake.fail;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    (void)pointer, (void)bytes;
    CALLED(cuMemUnmap);
    return fake.fail;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CALLED(cuMemRetainAllocationHandle);
    *handle = mapped[mapped_last].handle;
    for (unsigned i = 0; i < MAPPINGS; i++)
        if (mapped[i].pointer == (CUdeviceptr)(uintptr_t)address) *handle = mapped[i].handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                               void *os_handle, int type) {
    CALLED(cuMemImportFromShareableHandle);
    (void)os_handle, (void)type;
    return take(handle, 512);
}

/* Any file will do: it is only looked at whether it is open. */
EXPORT CUresult cuMemExportToShareableHandle(void *os_handle, CUmemGenericAllocationHandle handle,
                                             int type, unsigned long long flags) {
    CALLED(cuMemExportToShareableHandle);
    (void)handle, (void)type, (void)flags;
    *(int *)os_handle = open("/dev/null", O_RDWR | O_CLOEXEC);
    return fake.fail;
}

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                                  const CUmulticastObjectProp *prop) {
    CALLED(cuMulticastCreate);
    (void)prop;
    return take(handle, 512);
}

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                                   CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                   unsigned long long flags) {
    CALLED(cuMulticastBindMem);
    (void)handle, (void)at, (void)memory, (void)offset, (void)bytes, (void)flags;
    return fake.fail;
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device,
                                      size_t at, CUmemGenericAllocationHandle memory,
                                      size_t offset, size_t bytes, unsigned long long flags) {
    CALLED(cuMulticastBindMem_v2);
    (void)handle, (void)device, (void)at, (void)memory, (void)offset, (void)bytes, (void)flags;
    return fake.fail;
}

EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at,
                                    CUdeviceptr pointer, size_t bytes, unsigned long long flags) {
    CALLED(cuMulticastBindAddr);
    (void)handle, (void)at, (void)pointer, (void)bytes, (void)flags;
    return fake.fail;
}

EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device,
                                       size_t at, CUdeviceptr pointer, size_t bytes,
                                       unsigned long long flags) {
    CALLED(cuMulticastBindAddr_v2);
    (void)handle, (void)device, (void)at, (void)pointer, (void)bytes, (void)flags;
    return fake.fail;
}

EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    CALLED(cuMemMapArrayAsync);
    (void)list, (void)count, (void)stream;
    return fake.fail;
}

EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    CALLED(cuMemMapArrayAsync_ptsz);
    (void)list, (void)count, (void)stream;
    return fake.fail;
}

static CUmemLocation located(void) {
    return (CUmemLocation){fake.graph_location ? fake.graph_location : CU_MEM_LOCATION_TYPE_DEVICE, 0};
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                       CUmemGenericAllocationHandle handle) {
    (void)handle;
    prop->location = located();
    return CUDA_SUCCESS;
}

/* ---- arrays, imports ---- */

#define MAKE(symbol, type, descriptor)                             \
    EXPORT CUresult symbol(type *made, const descriptor *given) {  \
        CUdeviceptr pointer = 0;                                   \
        CALLED(symbol);                                            \
        (void)given;                                               \
        CUresult result = take(&pointer, 512);                     \
        *made = (type)(uintptr_t)pointer;                          \
        return result;                                             \
    }
#define UNMAKE(symbol, type)               \
    EXPORT CUresult symbol(type made) {    \
        CALLED(symbol);                    \
        (void)made;                        \
        return freed();                    \
    }
MAKE(cuArrayCreate, CUarray, CUDA_ARRAY_DESCRIPTOR_v1)
MAKE(cuArrayCreate_v2, CUarray, CUDA_ARRAY_DESCRIPTOR)
MAKE(cuArray3DCreate, CUarray, CUDA_ARRAY3D_DESCRIPTOR_v1)
MAKE(cuArray3DCreate_v2, CUarray, CUDA_ARRAY3D_DESCRIPTOR)
MAKE(cuImportExternalMemory, CUexternalMemory, CUDA_EXTERNAL_MEMORY_HANDLE_DESC)
UNMAKE(cuArrayDestroy, CUarray)
UNMAKE(cuMipmappedArrayDestroy, CUmipmappedArray)
UNMAKE(cuDestroyExternalMemory, CUexternalMemory)
UNMAKE(cuIpcCloseMemHandle, CUdeviceptr)

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                       const CUDA_ARRAY3D_DESCRIPTOR *given, unsigned levels) {
    CUdeviceptr pointer = 0;
    CALLED(cuMipmappedArrayCreate);
    (void)given, (void)levels;
    CUresult result = take(&pointer, 512);
    *array = (CUmipmappedArray)(uintptr_t)pointer;
    return result;
}

EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                                const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *shape) {
    CALLED(cuExternalMemoryGetMappedBuffer);
    (void)memory, (void)shape;
    return take(pointer, 512);
}

EXPORT CUresult cuExternalMemoryGetMappedMipmappedArray(
    CUmipmappedArray *array, CUexternalMemory memory,
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *shape) {
    CUdeviceptr pointer = 0;
    CALLED(cuExternalMemoryGetMappedMipmappedArray);
    (void)memory, (void)shape;
    CUresult result = take(&pointer, 512);
    *array = (CUmipmappedArray)(uintptr_t)pointer;
    return result;
}

/* Everything that is opened is 40 MiB. A handle that is open already gives the same pointer again. */
static CUresult open_memory(CUdeviceptr *pointer, CUipcMemHandle handle) {
    static uint64_t opened;
    (void)handle;
    CUresult result = fake.one_handle && opened ? CUDA_SUCCESS : take(&opened, 512);
    *pointer = opened;
    return result;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    CALLED(cuIpcOpenMemHandle);
    (void)flags;
    return open_memory(pointer, handle);
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    CALLED(cuIpcOpenMemHandle_v2);
    (void)flags;
    return open_memory(pointer, handle);
}

EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer) {
    (void)pointer;
    if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL || fake.memory_device < 0) return CUDA_ERROR_INVALID_VALUE;
    *(int *)value = fake.memory_device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    *base = pointer;
    *bytes = 40 * MIB;
    return CUDA_SUCCESS;
}

/* ---- graphs: a graph is the list of its allocation nodes ---- */

static struct CUgraphExec_st {
    int number;
} execs[8];
static int execs_made;

static CUresult instantiate(CUgraphExec *exec) {
    *exec = &execs[execs_made++ % 8];
    return fake.fail;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    uint64_t *all[] = {fake.graph_sizes, fake.graph_kernels};
    size_t found = 0;
    for (int i = 0; graph && i < 8; i++) {
        uint64_t *node = &all[i / 4][i % 4];
        if (!*node) continue;
        if (nodes) nodes[found] = (CUgraphNode)node;
        found++;
    }
    *count = found;
    return CUDA_SUCCESS;
}

static bool is_kernel(CUgraphNode node) {
    uint64_t *entry = (uint64_t *)node;
    return entry >= fake.graph_kernels && entry < fake.graph_kernels + 4;
}

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *params) {
    *params = (CUDA_KERNEL_NODE_PARAMS_v2){.function = *(CUfunction *)node};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    *type = is_kernel(node) ? CU_GRAPH_NODE_TYPE_KERNEL : CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    params->pool.location = located();
    params->bytes = *(uint64_t *)node;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
                                   size_t bytes) {
    CALLED(cuGraphInstantiate);
    (void)graph, (void)node, (void)log, (void)bytes;
    return instantiate(exec);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node,
                                      char *log, size_t bytes) {
    CALLED(cuGraphInstantiate_v2);
    (void)graph, (void)node, (void)log, (void)bytes;
    return instantiate(exec);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                            unsigned long long flags) {
    CALLED(cuGraphInstantiateWithFlags);
    (void)graph, (void)flags;
    return instantiate(exec);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params) {
    CALLED(cuGraphInstantiateWithParams);
    (void)graph, (void)params;
    return instantiate(exec);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params) {
    CALLED(cuGraphInstantiateWithParams_ptsz);
    (void)graph, (void)params;
    return instantiate(exec);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    CALLED(cuGraphExecDestroy);
    (void)exec;
    return fake.fail;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    (void)device, (void)attribute;
    *(uint64_t *)value = fake.graph_reserved;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    (void)device;
    fake.graph_reserved = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    CALLED(cuMemFree);
    if (!fake.fail) give_pooled(pointer);
    return fake.fail;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CALLED(cuMemFree_v2);
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = freed();
    if (result == CUDA_SUCCESS) give_pooled(pointer);
    return result;
}

/* ---- figures ---- */

EXPORT CUresult cuMemGetInfo(unsigned *free_now, unsigned *total) {
    CALLED(cuMemGetInfo);
    *free_now = *total = UINT32_MAX;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_now, size_t *total) {
    CALLED(cuMemGetInfo_v2);
    *total = fake.total;
    *free_now = fake.total - fake.others;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    CALLED(cuDeviceTotalMem);
    (void)device;
    *bytes = UINT32_MAX;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CALLED(cuDeviceTotalMem_v2);
    (void)device;
    *bytes = fake.total;
    return CUDA_SUCCESS;
}

/* ---- lookups ---- */

/* An older driver, whose newer symbols the linker hides; or one of the future. */
#ifndef FAKE_VERSION
#define FAKE_VERSION 13999
#endif
/* Drivers that differ in little but their version are compiled once and linked with each. */
#ifdef VERSION_WHEN_LINKED
extern const int fake_version;
#define ITS_VERSION fake_version
#else
#define ITS_VERSION FAKE_VERSION
#endif

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = ITS_VERSION;
    return CUDA_SUCCESS;
}

#if FAKE_VERSION >= 14000
EXPORT CUresult cuMemAlloc_v3(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return cuMemAlloc_v2(pointer, bytes);
}

EXPORT CUresult cuMemAllocQuantum(CUdeviceptr *pointer) {
    return cuMemAlloc_v2(pointer, 1);
}
#endif

static const struct entry {
    const char *base;
    int version;
    int per_thread;
    void *function;
} entries[] = {
#define ANY 0
#define PER_THREAD 1
#define ENTRY_CUDA(symbol, base, version, stream) {base, version, stream, (void *)&symbol},
#define ENTRY_LIBC(symbol, base, version, stream)
#define ENTRY_NVML(symbol, base, version, stream)
#define HOOK(library, symbol, base, version, stream) ENTRY_##library(symbol, base, version, stream)
#include "lookup/hooks_generated.def"
    {"cuDeviceGetCount", 2000, 0, (void *)&cuDeviceGetCount},
#if FAKE_VERSION >= 14000
    {"cuMemAlloc", 14000, 0, (void *)&cuMemAlloc_v3},
    {"cuMemAllocQuantum", 14000, 0, (void *)&cuMemAllocQuantum},
#endif
};

static void *exported(const char *name) {
    static const struct {
        const char *symbol;
        void *function;
    } all[] = {
#define SYMBOL_CUDA(symbol) {#symbol, (void *)&symbol},
#define SYMBOL_LIBC(symbol)
#define SYMBOL_NVML(symbol)
#define HOOK(library, symbol, base, version, stream) SYMBOL_##library(symbol)
#include "lookup/hooks_generated.def"
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].symbol, name)) return all[i].function;
    return NULL;
}

/* By the names that CUDA documents, and as some drivers do, by those that are exported. */
static CUresult find(const char *name, void **function, int version, uint64_t flags) {
    int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct entry *best = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const struct entry *entry = &entries[i];
        if (strcmp(entry->base, name) || entry->version > version ||
            entry->version > ITS_VERSION || entry->per_thread > per_thread)
            continue;
        if (!best || entry->version >= best->version) best = entry;
    }
    *function = best ? best->function : exported(name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    CALLED(cuGetProcAddress);
    return find(name, function, version, flags);
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                    int *status) {
    CALLED(cuGetProcAddress_v2);
    CUresult result = find(name, function, version, flags);
    if (status) *status = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}
