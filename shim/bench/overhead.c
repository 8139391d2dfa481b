/*
 * What the calls cost on a driver that does nothing: `overhead WORK [COUNT]` prints nanoseconds per
 * call (or pair of calls), the smallest of several rounds. Run it bare and with the shim, side by
 * side; the difference is the shim's. WORK is
 *     alloc, async       a pair of allocation and free
 *     live COUNT         the same with COUNT other allocations
 *     idle COUNT         the same with COUNT other processes that hold memory
 *     meminfo            cuMemGetInfo
 *     copy               an asynchronous copy
 *     wait               a copy that is waited for
 *     launch THREADS     a kernel's launch, in threads with a stream each
 *     starts COUNT       processes up to their first allocation, in seconds
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

static char host[4096];

static void copy_async(int count) {
    for (int i = 0; i < count; i++) api.cuMemcpyHtoDAsync_v2(1 << 20, host, sizeof host, NULL);
}

static void copy_and_wait(int count) {
    for (int i = 0; i < count; i++) api.cuMemcpyDtoH_v2(host, 1 << 20, sizeof host);
}

static double best_of(work_function *work, int count) {
    double best = 1e18;
    work(count);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = now_ns();
        work(count);
        double each = (double)(now_ns() - start) / count;
        if (each < best) best = each;
    }
    return best;
}

/* A process with memory of its own, until this one ends. */
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
 * Rounds are long enough for whatever the shim does once in a while, and for threads to meet; they
 * are counted in processor time, since there may be fewer processors than threads. To who measures
 * the card it looks busy all through a round: pauses keep it within its share, so that no launch
 * has to wait.
 */
enum { LAUNCH_ROUNDS = 10, LAUNCHES_ALL = 1600000, FUNCTIONS = 16, THREADS_MAX = 64 };
#define PAUSE_US 60000

static pthread_barrier_t all;
static int launches_each;
static uint64_t spent[LAUNCH_ROUNDS];

typedef CUresult launch_function(CUfunction function, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, unsigned, unsigned, CUstream, void **, void **);

static launch_function *find_launch(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    launch_function *found = (launch_function *)dlsym(driver, "cuLaunchKernel");
    CHECK(found);
    return found;
}

static void launch_many(launch_function *launch, CUstream stream) {
    static char functions[FUNCTIONS][64];
    for (int i = 0; i < launches_each; i++)
        launch((CUfunction)functions[i % FUNCTIONS], 64, 1, 1, 256, 1, 1, 0, stream, NULL, NULL);
}

static void *launcher(void *launch) {
    CUstream stream;
    api_use(0);
    CHECK_IS(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    launch_many((launch_function *)launch, stream);
    for (int round = 0; round < LAUNCH_ROUNDS; round++) {
        pthread_barrier_wait(&all);
        usleep(PAUSE_US);
        uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        launch_many((launch_function *)launch, stream);
        __atomic_fetch_add(&spent[round], clock_ns(CLOCK_THREAD_CPUTIME_ID) - start,
                           __ATOMIC_RELAXED);
    }
    return NULL;
}

static double launches(int threads) {
    pthread_t thread[THREADS_MAX];
    uint64_t best = UINT64_MAX;
    CHECK(threads > 0 && threads <= THREADS_MAX);
    fake.uncounted = 1;
    launches_each = LAUNCHES_ALL / threads;
    pthread_barrier_init(&all, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        CHECK(!pthread_create(&thread[i], NULL, launcher, (void *)find_launch()));
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    for (int round = 0; round < LAUNCH_ROUNDS; round++)
        if (spent[round] < best) best = spent[round];
    return (double)best / launches_each / threads;
}

/* ---- starts ---- */

/*
 * COUNT processes, at most 8 at once, each up to its first allocation: prints the seconds it took,
 * and the processor's seconds in it (what counts on a machine that others use too).
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
    if (!strcmp(what, "meminfo")) return meminfo;
    if (!strcmp(what, "async")) return alloc_free_async;
    if (!strcmp(what, "copy")) return copy_async;
    return strcmp(what, "wait") ? alloc_free : copy_and_wait;
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    const char *what = arguments[1];
    int number = count > 2 ? atoi(arguments[2]) : 0;
    if (!strcmp(what, "starts")) return starts(number, arguments[0]), 0;
    fake.lazy = 1; /* as drivers are */
    api_load("dlsym");
    if (!strcmp(what, "idle")) idle_processes(number);
    api_start();
    if (!strcmp(what, "once")) return alloc_free(1), 0;
    if (!strcmp(what, "live")) live_allocations(number);
    if (!strcmp(what, "launch")) return printf("%.2f\n", launches(number)), 0;
    printf("%.2f\n", best_of(find_work(what), 2000));
    return 0;
}
