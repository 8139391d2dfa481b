/* cuda-sample: the smallest program that shows what a container may do with its GPU.
 *
 *   cuda-sample smi                      a table like nvidia-smi's, as this process sees the cards
 *   cuda-sample info                     free and total memory, as CUDA reports to this process
 *   cuda-sample alloc MIB [--api API]    try once: "OK", or the CUDA error's name (exit 3 if OOM)
 *   cuda-sample hold MIB [--api API] [--seconds N]
 *                                        allocate, say so, hold until SIGTERM or for N seconds
 *   cuda-sample busy [--kernel-us N] [--seconds N]
 *                                        as many kernels as the card takes, of N us each (200); says
 *                                        every second for how much of it they ran
 *
 * API: alloc (default), pitch, managed, async. --device N chooses the card (default 0).
 * Exit: 0 well, 1 any other failure, 2 wrong usage, 3 CUDA_ERROR_OUT_OF_MEMORY.
 *
 * It needs no CUDA to be built: the driver's libraries are loaded when it runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXIT_USAGE = 2, EXIT_OOM = 3, CUDA_OOM = 2, MIB_SHIFT = 20 };

typedef unsigned long long pointer_t;

struct options {
    const char *verb, *api;
    uint64_t bytes;
    long seconds; /* -1: until SIGTERM */
    long kernel_us;
    int device;
};

/* ---- loading -------------------------------------------------------------------------------- */

static void *load_library(const char *name) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
    fprintf(stderr, "cuda-sample: no GPU driver here: %s\n", dlerror());
    exit(EXIT_FAILURE);
}

static void *need(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol) return symbol;
    fprintf(stderr, "cuda-sample: the driver has no %s\n", name);
    exit(EXIT_FAILURE);
}

/* ---- CUDA ----------------------------------------------------------------------------------- */

static void *cuda;

#define CU(name, ...) ((int (*)(__VA_ARGS__))need(cuda, #name))

static const char *error_name(int error) {
    const char *name = NULL;
    CU(cuGetErrorName, int, const char **)(error, &name);
    return name ? name : "an unknown CUDA error";
}

/* What goes wrong is printed as CUDA names it, on standard output where a script looks for it. */
static void check(int error) {
    if (!error) return;
    printf("%s\n", error_name(error));
    exit(error == CUDA_OOM ? EXIT_OOM : EXIT_FAILURE);
}

static void open_device(int device) {
    void *context;
    cuda = load_library("libcuda.so.1");
    check(CU(cuInit, unsigned)(0));
    check(CU(cuDevicePrimaryCtxRetain, void **, int)(&context, device));
    check(CU(cuCtxSetCurrent, void *)(context));
}

static int allocate_async(pointer_t *pointer, uint64_t bytes) {
    int error = CU(cuMemAllocAsync, pointer_t *, size_t, void *)(pointer, bytes, NULL);
    return error ? error : CU(cuStreamSynchronize, void *)(NULL);
}

/* Rows of 1 MiB: the pitch is then the width, and the size is what was asked for. */
static int allocate_pitch(pointer_t *pointer, uint64_t bytes) {
    size_t pitch, width = (size_t)1 << MIB_SHIFT;
    return CU(cuMemAllocPitch_v2, pointer_t *, size_t *, size_t, size_t, unsigned)(
        pointer, &pitch, width, bytes / width, 4);
}

static int allocate(const char *api, pointer_t *pointer, uint64_t bytes) {
    enum { ATTACH_GLOBAL = 1 };
    if (strcmp(api, "pitch") == 0) return allocate_pitch(pointer, bytes);
    if (strcmp(api, "async") == 0) return allocate_async(pointer, bytes);
    if (strcmp(api, "managed") == 0)
        return CU(cuMemAllocManaged, pointer_t *, size_t, unsigned)(pointer, bytes, ATTACH_GLOBAL);
    return CU(cuMemAlloc_v2, pointer_t *, size_t)(pointer, bytes);
}

static void run_alloc(const struct options *options) {
    pointer_t pointer;
    open_device(options->device);
    check(allocate(options->api, &pointer, options->bytes));
    puts("OK");
}

static void run_hold(const struct options *options) {
    pointer_t pointer;
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    open_device(options->device);
    check(allocate(options->api, &pointer, options->bytes));
    printf("holding %llu MiB\n", (unsigned long long)(options->bytes >> MIB_SHIFT));
    fflush(stdout);
    struct timespec limit = {.tv_sec = options->seconds};
    while (sigtimedwait(&ends, NULL, options->seconds < 0 ? NULL : &limit) < 0 && errno == EINTR)
        continue; /* a process that was stopped and continued is interrupted */
    check(CU(cuMemFree_v2, pointer_t)(pointer));
    puts("released");
}

/* ---- work ----------------------------------------------------------------------------------- */

enum { AHEAD = 4, MULTIPROCESSORS = 16, THREADS = 1024, BATCH_US = 1000, NO_TIMING = 2 };

/* One wave of blocks that look at the card's clock until it is late enough. */
static const char spin_image[] =
    ".version 6.4\n.target sm_50\n.address_size 64\n"
    ".visible .entry spin_ns(.param .u64 ns)\n{\n"
    ".reg .pred %p;\n.reg .u64 %now, %end;\n"
    "ld.param.u64 %end, [ns];\nmov.u64 %now, %globaltimer;\nadd.u64 %end, %end, %now;\n"
    "again:\nmov.u64 %now, %globaltimer;\nsetp.lt.u64 %p, %now, %end;\n@%p bra again;\nret;\n}\n";

struct work {
    void *kernel, *events[AHEAD];
    unsigned blocks, batch; /* kernels between two events */
    uint64_t kernel_ns;
};

static volatile sig_atomic_t told_to_end;

static void end_soon(int signal) {
    (void)signal;
    told_to_end = 1;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static struct work prepare(const struct options *options) {
    struct work work = {.kernel_ns = (uint64_t)options->kernel_us * 1000};
    void *module;
    int blocks;
    check(CU(cuModuleLoadData, void **, const void *)(&module, spin_image));
    check(CU(cuModuleGetFunction, void **, void *, const char *)(&work.kernel, module, "spin_ns"));
    check(CU(cuDeviceGetAttribute, int *, int, int)(&blocks, MULTIPROCESSORS, options->device));
    for (int i = 0; i < AHEAD; i++)
        check(CU(cuEventCreate, void **, unsigned)(&work.events[i], NO_TIMING));
    work.blocks = (unsigned)blocks;
    work.batch = options->kernel_us < BATCH_US ? (unsigned)(BATCH_US / options->kernel_us) : 1;
    return work;
}

static void launch_batch(struct work *work, void *event) {
    void *parameters[] = {&work->kernel_ns};
    for (unsigned i = 0; i < work->batch; i++)
        check(CU(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                 unsigned, void *, void **, void **)(work->kernel, work->blocks, 1, 1, THREADS, 1, 1,
                                                     0, NULL, parameters, NULL));
    check(CU(cuEventRecord, void *, void *)(event, NULL));
}

/* Prints how much of the time since `since` the kernels ran. Returns when it was printed. */
static double tell(uint64_t ran_ns, double since) {
    double now = seconds_now();
    printf("busy %.1f %%\n", (double)ran_ns / (now - since) / 1e7);
    fflush(stdout);
    return now;
}

static void run_busy(const struct options *options) {
    signal(SIGTERM, end_soon);
    signal(SIGINT, end_soon);
    open_device(options->device);
    struct work work = prepare(options);
    double began = seconds_now(), told = began;
    uint64_t ran_ns = 0;
    puts("working");
    for (uint64_t turn = 0; !told_to_end; turn++) {
        void *event = work.events[turn % AHEAD];
        check(CU(cuEventSynchronize, void *)(event)); /* at first, nothing to wait for */
        if (turn >= AHEAD) ran_ns += work.batch * work.kernel_ns;
        launch_batch(&work, event);
        if (seconds_now() - told >= 1) told = tell(ran_ns, told), ran_ns = 0;
        if (options->seconds >= 0 && seconds_now() - began >= (double)options->seconds) break;
    }
}

static void run_info(const struct options *options) {
    size_t free_bytes, total, device_total;
    open_device(options->device);
    check(CU(cuMemGetInfo_v2, size_t *, size_t *)(&free_bytes, &total));
    check(CU(cuDeviceTotalMem_v2, size_t *, int)(&device_total, options->device));
    printf("free %zu MiB\ntotal %zu MiB\ndevice total %zu MiB\n", free_bytes >> MIB_SHIFT,
           total >> MIB_SHIFT, device_total >> MIB_SHIFT);
}

/* ---- NVML ----------------------------------------------------------------------------------- */

static void *nvml;

#define NVML(name, ...) ((int (*)(__VA_ARGS__))need(nvml, #name))

static void check_nvml(int error) {
    if (!error) return;
    const char *(*text)(int) = (const char *(*)(int))need(nvml, "nvmlErrorString");
    fprintf(stderr, "cuda-sample: NVML: %s\n", text(error));
    exit(EXIT_FAILURE);
}

static void print_device(unsigned index, void *card) {
    char name[96], uuid[96];
    struct {
        unsigned long long total, free, used;
    } memory;
    check_nvml(NVML(nvmlDeviceGetName, void *, char *, unsigned)(card, name, sizeof name));
    check_nvml(NVML(nvmlDeviceGetUUID, void *, char *, unsigned)(card, uuid, sizeof uuid));
    check_nvml(NVML(nvmlDeviceGetMemoryInfo, void *, void *)(card, &memory));
    printf("| %3u  %-28.28s %-40s | %6lluMiB / %6lluMiB |\n", index, name, uuid,
           memory.used >> MIB_SHIFT, memory.total >> MIB_SHIFT);
}

/* Of a card that MIG divides, its MIG devices: no process can use the card itself. */
static bool print_instances(unsigned index, void *card) {
    unsigned on, pending, most;
    void *instance;
    if (!dlsym(nvml, "nvmlDeviceGetMigMode")) return false;
    if (NVML(nvmlDeviceGetMigMode, void *, unsigned *, unsigned *)(card, &on, &pending) || !on)
        return false;
    check_nvml(NVML(nvmlDeviceGetMaxMigDeviceCount, void *, unsigned *)(card, &most));
    for (unsigned i = 0; i < most; i++)
        if (!NVML(nvmlDeviceGetMigDeviceHandleByIndex, void *, unsigned, void **)(card, i,
                                                                                 &instance))
            print_device(index, instance);
    return true;
}

static void print_card(unsigned index) {
    void *card;
    check_nvml(NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, void **)(index, &card));
    if (!print_instances(index, card)) print_device(index, card);
}

static void run_smi(void) {
    static const char rule[] =
        "+---------------------------------------------------------------------------"
        "+-----------------------+";
    unsigned count;
    nvml = load_library("libnvidia-ml.so.1");
    check_nvml(NVML(nvmlInit_v2, void)());
    check_nvml(NVML(nvmlDeviceGetCount_v2, unsigned *)(&count));
    printf("%s\n| %3s  %-28s %-40s | %21s |\n%s\n", rule, "GPU", "Name", "UUID", "Memory-Usage",
           rule);
    for (unsigned i = 0; i < count; i++) print_card(i);
    printf("%s\n", rule);
}

/* ---- command line --------------------------------------------------------------------------- */

static void usage(void) {
    fprintf(stderr, "usage: cuda-sample smi | info [--device N]\n"
                    "       cuda-sample busy [--kernel-us N] [--seconds N] [--device N]\n"
                    "       cuda-sample alloc MIB [--api alloc|pitch|managed|async] [--device N]\n"
                    "       cuda-sample hold MIB [--api ...] [--seconds N] [--device N]\n");
    exit(EXIT_USAGE);
}

static long number(const char *text) {
    char *end;
    if (!text) usage();
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 0) usage();
    return value;
}

static const char *known_api(const char *api) {
    static const char *const apis[] = {"alloc", "pitch", "managed", "async"};
    for (size_t i = 0; api && i < sizeof apis / sizeof *apis; i++)
        if (strcmp(api, apis[i]) == 0) return api;
    usage();
    return NULL;
}

static struct options parse(char **arguments) {
    struct options options = {
        .api = "alloc", .seconds = -1, .kernel_us = 200, .verb = *arguments};
    if (!options.verb) usage();
    arguments++;
    if (strcmp(options.verb, "alloc") == 0 || strcmp(options.verb, "hold") == 0)
        options.bytes = (uint64_t)number(*arguments++) << MIB_SHIFT;
    for (; *arguments; arguments += 2) {
        if (strcmp(*arguments, "--api") == 0) options.api = known_api(arguments[1]);
        else if (strcmp(*arguments, "--seconds") == 0) options.seconds = number(arguments[1]);
        else if (strcmp(*arguments, "--kernel-us") == 0) options.kernel_us = number(arguments[1]);
        else if (strcmp(*arguments, "--device") == 0) options.device = (int)number(arguments[1]);
        else usage();
    }
    if (options.kernel_us < 1) usage();
    return options;
}

int main(int count, char **arguments) {
    (void)count;
    struct options options = parse(arguments + 1);
    if (strcmp(options.verb, "smi") == 0) run_smi();
    else if (strcmp(options.verb, "info") == 0) run_info(&options);
    else if (strcmp(options.verb, "alloc") == 0) run_alloc(&options);
    else if (strcmp(options.verb, "hold") == 0) run_hold(&options);
    else if (strcmp(options.verb, "busy") == 0) run_busy(&options);
    else usage();
    return EXIT_SUCCESS;
}
