/*
 * A program of CUDA's runtime, registered and linked as nvcc does it. Each way of its is a test:
 *     tour        what programs do first, once
 *     memory MIB  says what is free; takes pieces of so many MiB until it is refused one; gives them
 *                 back; says what is free again
 *     launch WAY  LAUNCHES kernels of 1 ms, by a launch of that kind
 *     reset       begins anew
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#define OK(call)                                                                            \
    do {                                                                                    \
        cudaError_t result_ = (call);                                                       \
        if (result_ != cudaSuccess) fail(__LINE__, #call, cudaGetErrorName(result_));       \
    } while (0)
#define EXPECT(condition)                                              \
    do {                                                               \
        if (!(condition)) fail(__LINE__, #condition, "not so");        \
    } while (0)

enum { MIB = 1 << 20, LAUNCHES = 40, PIECES = 4096 };
static const uint64_t MILLISECOND = 1000000;

static void fail(int line, const char *what, const char *why) {
    fprintf(stderr, "program.c:%d: %s: %s\n", line, what, why);
    exit(1);
}

/* ---- a fat binary with one kernel, and its registration ----------------------------------------- */

#define PTX                                             \
    "//\n.version 6.4\n.target sm_75\n.address_size 64\n" \
    ".visible .entry spin_ns(.param .u64 ns) { ret; }\n"

struct file {
    uint16_t kind, version;
    uint32_t header_bytes, padded_bytes, unknown0, bytes, unknown1[2], sm, address_bits, unknown2;
    uint64_t unknown3[2], uncompressed_bytes;
};
enum { IS_PTX = 1 };

static const struct {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
    struct file file;
    char text[160];
} fat_binary = {0xba55ed50,
                1,
                16,
                sizeof(struct file) + 160,
                {IS_PTX, 0x101, sizeof(struct file), 160, 0, sizeof PTX, {0}, 75, 64, 0, {0}, 0},
                PTX};

static const struct {
    uint32_t magic, version;
    const void *data;
    void *unused;
} wrapper = {0x466243b1, 1, &fat_binary, NULL};

void **__cudaRegisterFatBinary(const void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const void *stub, const char *name, const char *symbol,
                            int limit, void *, void *, void *, void *, int *);

static void **registered;

/* The kernel, as the host knows it: only its address counts. */
static void spin_ns(void) {}

static void unregister(void) {
    __cudaUnregisterFatBinary(registered);
}

__attribute__((constructor)) static void register_all(void) {
    registered = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(registered, (const void *)spin_ns, "spin_ns", "spin_ns", -1, NULL, NULL,
                           NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(registered);
    atexit(unregister);
}

/* ---- launches ------------------------------------------------------------------------------------ */

static const dim3 GRID = {1, 1, 1}, BLOCK = {32, 1, 1};

static void launch(const void *kernel, cudaStream_t stream) {
    uint64_t ns = MILLISECOND;
    void *arguments[] = {&ns};
    OK(cudaLaunchKernel(kernel, GRID, BLOCK, arguments, 0, stream));
}

static void launch_plain(cudaStream_t stream) {
    for (int i = 0; i < LAUNCHES; i++) launch((const void *)spin_ns, stream);
}

static void launch_ex(cudaStream_t stream) {
    uint64_t ns = MILLISECOND;
    void *arguments[] = {&ns};
    cudaLaunchConfig_t config = {.gridDim = GRID, .blockDim = BLOCK, .stream = stream};
    for (int i = 0; i < LAUNCHES; i++)
        OK(cudaLaunchKernelExC(&config, (const void *)spin_ns, arguments));
}

static void launch_cooperative(cudaStream_t stream) {
    uint64_t ns = MILLISECOND;
    void *arguments[] = {&ns};
    for (int i = 0; i < LAUNCHES; i++)
        OK(cudaLaunchCooperativeKernel((const void *)spin_ns, GRID, BLOCK, arguments, 0, stream));
}

static void launch_graph(cudaStream_t stream) {
    enum { IN_GRAPH = 4 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < IN_GRAPH; i++) launch((const void *)spin_ns, stream);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < LAUNCHES / IN_GRAPH; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}

#if CUDART_VERSION >= 12080
static void launch_library(cudaStream_t stream) {
    cudaLibrary_t library;
    cudaKernel_t kernel;
    OK(cudaLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0));
    OK(cudaLibraryGetKernel(&kernel, library, "spin_ns"));
    for (int i = 0; i < LAUNCHES; i++) launch((const void *)kernel, stream);
    OK(cudaStreamSynchronize(stream));
    OK(cudaLibraryUnload(library));
}
#else /* there are none yet */
#define launch_library launch_plain
#endif

static const struct {
    const char *name;
    void (*run)(cudaStream_t stream);
} ways[] = {{"plain", launch_plain},
            {"ex", launch_ex},
            {"cooperative", launch_cooperative},
            {"graph", launch_graph},
            {"library", launch_library}};

static void run_launches(const char *way) {
    cudaStream_t stream;
    size_t i = 0;
    while (i < sizeof ways / sizeof *ways && strcmp(ways[i].name, way) != 0) i++;
    EXPECT(i < sizeof ways / sizeof *ways);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ways[i].run(stream);
    OK(cudaStreamDestroy(stream));
    OK(cudaDeviceSynchronize());
}

/* ---- memory --------------------------------------------------------------------------------------- */

static void say_free(void) {
    size_t available, total;
    OK(cudaMemGetInfo(&available, &total));
    printf("free %zu total %zu\n", available / MIB, total / MIB);
}

static void take_all(size_t bytes) {
    static void *taken[PIECES];
    unsigned count = 0;
    cudaError_t result;
    say_free();
    while ((result = cudaMalloc(&taken[count], bytes)) == cudaSuccess && count < PIECES - 1) count++;
    EXPECT(cudaGetLastError() == result);
    printf("pieces %u then %s\n", count, cudaGetErrorName(result));
    say_free();
    while (count) OK(cudaFree(taken[--count]));
    say_free();
}

/* ---- a tour --------------------------------------------------------------------------------------- */

static void look_at_devices(void) {
    int count, current, driver, runtime;
    struct cudaDeviceProp properties;
    OK(cudaDriverGetVersion(&driver));
    OK(cudaRuntimeGetVersion(&runtime));
    EXPECT(driver == 13000 && runtime == CUDART_VERSION);
    OK(cudaGetDeviceCount(&count));
    for (int device = 0; device < count; device++) {
        OK(cudaGetDeviceProperties(&properties, device));
        EXPECT(properties.multiProcessorCount == 108 && properties.warpSize == 32);
        printf("%s %d.%d %zu\n", properties.name, properties.major, properties.minor,
               properties.totalGlobalMem / MIB);
    }
    OK(cudaSetDevice(count - 1));
    OK(cudaGetDevice(&current));
    EXPECT(current == count - 1);
    EXPECT(cudaSetDevice(count) == cudaErrorInvalidDevice);
    EXPECT(cudaGetLastError() == cudaErrorInvalidDevice);
}

static void copy_there_and_back(cudaStream_t stream) {
    char sent[100] = "there and back", received[100] = "";
    void *plain, *ordered, *pinned, *managed;
    struct cudaPointerAttributes attributes;
    OK(cudaMalloc(&plain, MIB));
    OK(cudaMallocAsync(&ordered, MIB, stream));
    OK(cudaMallocHost(&pinned, MIB));
    OK(cudaMallocManaged(&managed, MIB, cudaMemAttachGlobal));
    OK(cudaMemcpy(plain, sent, sizeof sent, cudaMemcpyHostToDevice));
    OK(cudaMemcpyAsync(ordered, plain, sizeof sent, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpyAsync(received, ordered, sizeof sent, cudaMemcpyDefault, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(strcmp(received, sent) == 0);
    OK(cudaMemset(plain, 0, MIB));
    OK(cudaMemcpy(received, plain, sizeof received, cudaMemcpyDeviceToHost));
    EXPECT(received[0] == 0);
    OK(cudaPointerGetAttributes(&attributes, plain));
    EXPECT(attributes.type == cudaMemoryTypeDevice);
    OK(cudaFreeAsync(ordered, stream));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(managed));
    OK(cudaFree(plain));
}

static void time_a_kernel(cudaStream_t stream) {
    cudaEvent_t start, end;
    float milliseconds;
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(start, stream));
    launch((const void *)spin_ns, stream);
    OK(cudaEventRecord(end, stream));
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&milliseconds, start, end));
    EXPECT(milliseconds >= 0.99F);
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
}

static void ask_about_the_kernel(void) {
    struct cudaFuncAttributes attributes;
    int blocks;
    OK(cudaFuncGetAttributes(&attributes, (const void *)spin_ns));
    EXPECT(attributes.maxThreadsPerBlock == 1024);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)spin_ns, 128, 0));
    EXPECT(blocks == 16);
}

static void called(void *data) {
    *(int *)data = 1;
}

static void tour(void) {
    cudaStream_t stream;
    int was_called = 0;
    look_at_devices();
    OK(cudaStreamCreate(&stream));
    copy_there_and_back(stream);
    time_a_kernel(stream);
    time_a_kernel(cudaStreamPerThread);
    time_a_kernel(NULL);
    ask_about_the_kernel();
    OK(cudaLaunchHostFunc(stream, called, &was_called));
    OK(cudaStreamSynchronize(stream));
    EXPECT(was_called);
    OK(cudaStreamDestroy(stream));
    OK(cudaDeviceSynchronize());
}

/* The primary context ends, and begins again with what is used next. */
static void reset(void) {
    void *memory;
    for (int i = 0; i < 3; i++) {
        OK(cudaMalloc(&memory, 64 * MIB));
        launch((const void *)spin_ns, NULL);
        launch((const void *)spin_ns, cudaStreamPerThread);
        say_free();
        OK(cudaDeviceReset());
    }
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "", *more = count > 2 ? arguments[2] : "";
    if (strcmp(way, "tour") == 0) tour();
    else if (strcmp(way, "memory") == 0) take_all((size_t)atoi(more) * MIB);
    else if (strcmp(way, "launch") == 0) run_launches(more);
    else if (strcmp(way, "reset") == 0) reset();
    else fail(__LINE__, way, "no such way");
    return 0;
}
