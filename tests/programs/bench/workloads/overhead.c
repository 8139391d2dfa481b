/*
 * Measures the cost of calls on a driver that does nothing: `overhead WORK [COUNT]` prints ns of
 * processor time per call (or pair of calls), the mean of several rounds. Run it bare and with the
 * shim, side by side; the difference is the shim's cost. WORK is
 *     alloc THREADS, async   a pair of allocation and free
 *     live COUNT         the same with COUNT other allocations
 *     idle COUNT         the same with COUNT other processes that hold memory
 *     meminfo, nvml_meminfo   cuMemGetInfo, nvmlDeviceGetMemoryInfo
 *     copy               an asynchronous copy
 *     wait               a copy that is waited for
 *     launch THREADS FUNCTIONS STREAMS SHAPES KERNEL_NS
 *                        a kernel's launch, by THREADS threads with STREAMS streams each, of FUNCTIONS
 *                        functions in turn, each in SHAPES shapes; kernels take KERNEL_NS
 *     starts COUNT       seconds until COUNT processes have made their first allocation
 *     call, add, swap, probe   basic operations, for comparison: an indirect call, an uncontended atomic
 *                        addition, a 128-bit compare-and-swap, a probe of a hash table
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "base/numbers.h"
#include "base/wide.h"
#include "check.h"

#define ROUNDS 400

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

typedef void work_function(int count);

static void alloc_free(int count) {
    CUdeviceptr pointer;
    for (int i = 0; i < count; i++) {
        api.cuMemAlloc_v2(&pointer, 4096);
        api.cuMemFree_v2(pointer);
    }
}

static void alloc_free_async(int count) {
    CUdeviceptr pointer;
    for (int i = 0; i < count; i++) {
        api.cuMemAllocAsync(&pointer, 4096, NULL);
        api.cuMemFreeAsync(pointer, NULL);
    }
}

static void meminfo(int count) {
    size_t free_now, total;
    for (int i = 0; i < count; i++) api.cuMemGetInfo_v2(&free_now, &total);
}

static void nvml_meminfo(int count) {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    CHECK_IS(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    for (int i = 0; i < count; i++) api.nvmlDeviceGetMemoryInfo(device, &memory);
}

static char host[4096];

static void copy_async(int count) {
    for (int i = 0; i < count; i++) api.cuMemcpyHtoDAsync_v2(1 << 20, host, sizeof host, NULL);
}

static void copy_and_wait(int count) {
    for (int i = 0; i < count; i++) api.cuMemcpyDtoH_v2(host, 1 << 20, sizeof host);
}

static double mean_of(work_function *work, int count) {
    work(count);
    uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int round = 0; round < ROUNDS; round++) work(count);
    return (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - start) / count / ROUNDS;
}

/* ---- basic operations ---- */

enum { TABLE_BITS = 16 };

static void nothing(void) {
    __asm__ volatile("");
}

static void call(int count) {
    void (*volatile function)(void) = nothing;
    for (int i = 0; i < count; i++) function();
}

static void add(int count) {
    static uint64_t word;
    for (int i = 0; i < count; i++) __atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
}

static void swap_wide(int count) {
    static _Alignas(16) struct wide word;
    for (int i = 0; i < count; i++)
        wide_swap(&word, word, (struct wide){word.lo + 1, word.hi});
}

/* The keys are addresses of allocations, and each depends on the result of the one before. */
static void probe(int count) {
    static struct { uint64_t key, value; } table[1 << TABLE_BITS];
    uint64_t key = 0;
    for (int i = 0; i < count; i++) {
        uint64_t place = scattered(key, TABLE_BITS);
        __asm__ volatile("" : : "r"(table) : "memory"); /* hides the table's content from the compiler */
        key = (table[place].key == key ? table[place].value : 0) + ((uint64_t)i << 21);
    }
    __asm__ volatile("" : : "r"(key));
}

/* A process with memory of its own, which ends with this one. */
static void idle_process(int ready) {
    CUdeviceptr pointer;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    api_start();
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 4096), CUDA_SUCCESS);
    CHECK(write(ready, "", 1) == 1);
    for (;;) pause();
}

static void idle_processes(int count) {
    int ready[2];
    char byte;
    CHECK(!pipe(ready));
    for (int i = 0; i < count; i++)
        if (!fork()) idle_process(ready[1]);
    for (int i = 0; i < count; i++) CHECK(read(ready[0], &byte, 1) == 1);
}

static void live_allocations(int count) {
    CUdeviceptr pointer;
    for (int i = 0; i < count; i++) CHECK_IS(api.cuMemAlloc_v2(&pointer, 4096), CUDA_SUCCESS);
}

/* ---- launches ---- */

/*
 * Rounds are long enough for work that the shim does only sometimes, and for threads to contend.
 * They are measured in processor time, since there may be fewer processors than threads. To a
 * measurement of the card, it looks busy during a whole round: pauses keep the process within its
 * share, so that no launch has to wait.
 */
enum { LAUNCHES_ALL = 1600000, FUNCTIONS_MAX = 4096, STREAMS_MAX = 8, THREADS_MAX = 64 };

/* Kernels that take time, few enough that the card is done with them before the next round. */
enum { LAUNCHES_TAKING_TIME = 2000, ROUNDS_TAKING_TIME = 50 };

static struct {
    int each, rounds, functions, streams, shapes;
    useconds_t pause;
} how = {.rounds = 10, .pause = 60000, .functions = 16, .streams = 1, .shapes = 1};

static pthread_barrier_t all;
static uint64_t spent;

typedef CUresult launch_function(CUfunction function, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, unsigned, unsigned, CUstream, void **, void **);

static launch_function *find_launch(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    launch_function *found = (launch_function *)dlsym(driver, "cuLaunchKernel");
    CHECK(found);
    return found;
}

/* Launches each function once in a shape, before the next shape. */
static void launch_many(launch_function *launch, CUstream *streams) {
    static char functions[FUNCTIONS_MAX][64];
    int function = 0, stream = 0;
    unsigned shape = 0;
    for (int i = 0; i < how.each; i++) {
        launch((CUfunction)functions[function], 64 + shape, 1, 1, 256, 1, 1, 0, streams[stream], NULL,
               NULL);
        if (++stream == how.streams) stream = 0;
        if (++function < how.functions) continue;
        function = 0;
        if (++shape == (unsigned)how.shapes) shape = 0;
    }
}

static void *launcher(void *launch) {
    CUstream streams[STREAMS_MAX];
    api_use(0);
    for (int i = 0; i < how.streams; i++)
        CHECK_IS(cuStreamCreate(&streams[i], 1), CUDA_SUCCESS);
    launch_many((launch_function *)launch, streams);
    for (int round = 0; round < how.rounds; round++) {
        pthread_barrier_wait(&all);
        usleep(how.pause);
        uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        launch_many((launch_function *)launch, streams);
        __atomic_fetch_add(&spent, clock_ns(CLOCK_THREAD_CPUTIME_ID) - start, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void run_threads(int threads, void *(*work)(void *), void *given) {
    pthread_t thread[THREADS_MAX];
    CHECK(threads > 0 && threads <= THREADS_MAX);
    fake.uncounted = 1;
    pthread_barrier_init(&all, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) CHECK(!pthread_create(&thread[i], NULL, work, given));
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
}

static void read_how(int count, char **given) {
    if (count > 0) how.functions = atoi(given[0]);
    if (count > 1) how.streams = atoi(given[1]);
    if (count > 2) how.shapes = atoi(given[2]);
    if (count > 3) fake.launch_takes = strtoull(given[3], NULL, 10);
    CHECK(how.functions > 0 && how.functions <= FUNCTIONS_MAX);
    CHECK(how.streams > 0 && how.streams <= STREAMS_MAX && how.shapes > 0);
}

static double launches(int threads) {
    how.each = LAUNCHES_ALL / threads;
    if (fake.launch_takes) {
        how.each = LAUNCHES_TAKING_TIME;
        how.rounds = ROUNDS_TAKING_TIME;
        how.pause = (useconds_t)(how.each * fake.launch_takes / 1000);
    }
    run_threads(threads, launcher, (void *)find_launch());
    return (double)spent / how.rounds / how.each / threads;
}

/* ---- allocations in several threads ---- */

static void *allocator(void *count) {
    api_use(0);
    pthread_barrier_wait(&all);
    double each = mean_of(alloc_free, *(int *)count);
    __atomic_fetch_add(&spent, (uint64_t)(each * 1000), __ATOMIC_RELAXED);
    return NULL;
}

static double allocations(int threads) {
    int count = 2000;
    run_threads(threads, allocator, &count);
    return (double)spent / 1000 / threads;
}

/* ---- starts ---- */

/*
 * Starts COUNT processes, at most 8 at a time, each up to its first allocation. Prints the seconds
 * that this took, and the seconds of processor time (the relevant figure on a busy machine).
 */
static void starts(int count, char *self) {
    uint64_t start = now_ns();
    int running = 0, status;
    for (int i = 0; i < count; i++) {
        if (running == 8) wait(&status), running--;
        if (!fork()) {
            execl(self, self, "once", NULL);
            _exit(1);
        }
        running++;
    }
    while (wait(&status) > 0) CHECK(status == 0);
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    printf("%.4f %.4f\n", (double)(now_ns() - start) / 1e9,
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
}

static work_function *find_work(const char *what) {
    if (!strcmp(what, "call")) return call;
    if (!strcmp(what, "add")) return add;
    if (!strcmp(what, "swap")) return swap_wide;
    if (!strcmp(what, "probe")) return probe;
    if (!strcmp(what, "meminfo")) return meminfo;
    if (!strcmp(what, "nvml_meminfo")) return nvml_meminfo;
    if (!strcmp(what, "async")) return alloc_free_async;
    if (!strcmp(what, "copy")) return copy_async;
    return strcmp(what, "wait") ? alloc_free : copy_and_wait;
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    const char *what = arguments[1];
    int number = count > 2 ? atoi(arguments[2]) : 0;
    if (!strcmp(what, "starts")) return starts(number, arguments[0]), 0;
    fake.lazy = 1; /* like the default of drivers */
    api_load("dlsym");
    if (!strcmp(what, "idle")) idle_processes(number);
    api_start();
    if (!strcmp(what, "once")) return alloc_free(1), 0;
    if (!strcmp(what, "live")) live_allocations(number);
    if (!strcmp(what, "launch")) {
        read_how(count - 3, arguments + 3);
        return printf("%.2f\n", launches(number)), 0;
    }
    if (!strcmp(what, "alloc")) return printf("%.2f\n", allocations(number)), 0;
    printf("%.2f\n", mean_of(find_work(what), 2000));
    return 0;
}
