/* What a harsh card does; those with an underscore in their names run on a kind one as well. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "snippet.h"

SNIPPET(an_error_of_a_kernel_stays_until_its_context_ends) {
    CUdeviceptr pointer, other;
    CUcontext context = start();
    CUevent early = event();
    OK(cuMemAlloc_v2(&pointer, PAGE));
    launch(kernel("fault_us_10"), NULL);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&other, PAGE));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(pointer));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventRecord(early, NULL));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&pointer, PAGE));
    OK(cuMemFree_v2(pointer));
}

static atomic_bool may_go_on;

static void wait_until_it_may(void *nothing) {
    (void)nothing;
    while (!may_go_on) sched_yield();
}

static void *work_elsewhere(void *context) {
    CUdeviceptr pointer;
    OK(cuCtxSetCurrent(context));
    CUstream own = stream();
    launch(kernel("some_us_10"), own);
    OK(cuStreamSynchronize(own));
    OK(cuMemAlloc_v2(&pointer, PAGE));
    may_go_on = true;
    return NULL;
}

/* More launches than queues hold, behind a function that waits for another thread of the process. */
SNIPPET(crowded) {
    enum { LAUNCHES = 1100 };
    pthread_t other;
    CUcontext context = start();
    CUstream own = stream();
    CUfunction function = kernel("some_us_1");
    OK(cuLaunchHostFunc(own, wait_until_it_may, NULL));
    EQUAL(pthread_create(&other, NULL, work_elsewhere, context), 0);
    for (int i = 0; i < LAUNCHES; i++) launch(function, own);
    OK(cuStreamSynchronize(own));
    pthread_join(other, NULL);
}

/* Launches so many kernels of 100 us, and ends. */
SNIPPET(queue) {
    start();
    CUfunction function = kernel("some_us_100");
    for (int i = atoi(arguments[0]); i > 0; i--) launch(function, NULL);
}

/* Prints how many ns each of ten kernels of 100 us took by its events. */
SNIPPET(durations) {
    start();
    CUfunction function = kernel("some_us_100");
    for (int i = 0; i < 10; i++) {
        CUevent from = event(), to = event();
        float milliseconds;
        OK(cuEventRecord(from, NULL));
        launch(function, NULL);
        OK(cuEventRecord(to, NULL));
        OK(cuEventSynchronize(to));
        OK(cuEventElapsedTime(&milliseconds, from, to));
        printf("%ld\n", (long)(milliseconds * 1e6 + 0.5));
        launch(kernel("some_ms_60"), NULL); /* clocks may be others afterwards */
        OK(cuCtxSynchronize());
    }
}

/* Takes so many MiB in one piece; prints what it was told, then in pieces, and how many it had. */
SNIPPET(pieces) {
    CUdeviceptr pointer;
    start();
    int whole = atoi(arguments[0]), had = 0;
    printf("%d ", cuMemAlloc_v2(&pointer, (size_t)whole * MIB));
    while (had < whole && cuMemAlloc_v2(&pointer, PAGE) == CUDA_SUCCESS) had += PAGE / MIB;
    printf("%d\n", had);
}

static int64_t real_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Launches so many functions, each so often; prints how many ns of real time that took. */
SNIPPET(launches) {
    start();
    int64_t spent = 0;
    for (int functions = atoi(arguments[0]); functions > 0; functions--) {
        CUfunction function = kernel("some_us_1");
        int64_t began = real_ns();
        for (int i = atoi(arguments[1]); i > 0; i--) launch(function, NULL);
        spent += real_ns() - began;
    }
    printf("%ld\n", (long)spent);
}

/* Records an event so often; prints how many ns of real time that took. */
SNIPPET(records) {
    start();
    CUevent mark = event();
    int64_t began = real_ns();
    for (int i = atoi(arguments[0]); i > 0; i--) OK(cuEventRecord(mark, NULL));
    printf("%ld\n", (long)(real_ns() - began));
}

static void print_a_kernels_time(CUstream where) {
    CUevent from = event(), to = event();
    OK(cuEventRecord(from, where));
    launch(kernel("some_us_100"), where);
    OK(cuEventRecord(to, where));
    OK(cuEventSynchronize(to));
    printf("%ld\n", elapsed_us(from, to));
}

/* Prints how many us a kernel of 100 us takes beside a copy of 1 ms, and after it. */
SNIPPET(copying) {
    enum { BYTES = 25000000 };
    CUdeviceptr target;
    void *source;
    start();
    OK(cuMemAlloc_v2(&target, BYTES));
    OK(cuMemAllocHost_v2(&source, BYTES));
    OK(cuMemcpyHtoDAsync_v2(target, source, BYTES, stream()));
    print_a_kernels_time(stream());
    OK(cuCtxSynchronize());
    print_a_kernels_time(stream());
}
