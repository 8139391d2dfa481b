/*
 * What the calls cost on a driver that does nothing: `overhead WORK [COUNT]` prints nanoseconds per
 * call (or pair of calls), the smallest of several rounds. Run it bare and with the shim, side by
 * side; the difference is the shim's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "check.h"

#define ROUNDS 400

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
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

/* Each with memory of its own, and doing nothing. */
static void idle_processes(int count) {
    for (int i = 0; i < count; i++) {
        if (fork()) continue;
        CUdeviceptr pointer;
        api_start();
        api.cuMemAlloc_v2(&pointer, 4096);
        sleep(20);
        _exit(0);
    }
    usleep(500000);
}

static void live_allocations(int count) {
    CUdeviceptr pointer;
    for (int i = 0; i < count; i++) CHECK_IS(api.cuMemAlloc_v2(&pointer, 4096), CUDA_SUCCESS);
}

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

int main(int count, char **arguments) {
    CHECK(count > 1);
    const char *what = arguments[1];
    int number = count > 2 ? atoi(arguments[2]) : 0;
    if (!strcmp(what, "starts")) return starts(number, arguments[0]), 0;
    api_load("dlsym");
    if (!strcmp(what, "idle")) idle_processes(number);
    api_start();
    if (!strcmp(what, "once")) return alloc_free(1), 0;
    if (!strcmp(what, "live")) live_allocations(number);
    work_function *work = !strcmp(what, "meminfo") ? meminfo
                 : !strcmp(what, "async") ? alloc_free_async : alloc_free;
    printf("%.2f\n", best_of(work, 2000));
    return 0;
}
