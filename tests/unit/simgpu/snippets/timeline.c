/* Simulated time: these run on a clock that whoever waits moves on. */
#include <unistd.h>

#include "snippet.h"

enum { COPY_START = 1, LINK_GB = 25 }; /* us, GB/s */

SNIPPET(kernels_of_a_stream_follow_each_other) {
    start();
    CUfunction work = kernel("work_us_200");
    CUevent from = event(), to = event();
    OK(cuEventRecord(from, NULL));
    for (int i = 0; i < 10; i++) launch(work, NULL);
    OK(cuEventRecord(to, NULL));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(to));
    OK(cuEventSynchronize(to));
    EQUAL(elapsed_us(from, to), 2000);
}

SNIPPET(a_kernel_takes_as_long_as_its_parameter_says) {
    uint64_t us = 1234;
    void *parameters[] = {&us};
    start();
    CUfunction spin = kernel("spin_us");
    CUevent from = event(), to = event();
    OK(cuEventRecord(from, NULL));
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(cuEventRecord(to, NULL));
    OK(cuCtxSynchronize());
    EQUAL(elapsed_us(from, to), 1234);
}

SNIPPET(work_goes_on_when_its_stream_is_destroyed) {
    start();
    CUfunction work = kernel("work_us_1000");
    CUstream ended = stream();
    CUevent to = event();
    launch(work, ended);
    OK(cuEventRecord(to, ended));
    OK(cuStreamDestroy_v2(ended));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(to));
    OK(cuCtxSynchronize());
    OK(cuEventQuery(to));
}

/* On so many SMs of 2048 threads, two blocks of 1024 threads each are one wave: prints us of one such
 * kernel and of one with a block more. */
SNIPPET(waves) {
    start();
    unsigned blocks = 2 * (unsigned)atoi(arguments[0]);
    CUfunction work = kernel("work_us_100");
    CUevent from = event(), to = event();
    OK(cuEventRecord(from, NULL));
    launch_blocks(work, blocks, NULL);
    launch_blocks(work, blocks + 1, NULL);
    OK(cuEventRecord(to, NULL));
    OK(cuCtxSynchronize());
    printf("%ld\n", elapsed_us(from, to));
}

static long two_streams(unsigned blocks) {
    CUfunction work = kernel("work_us_100");
    CUstream a = stream(), b = stream();
    CUevent from = event(), to = event();
    OK(cuEventRecord(from, a));
    launch_blocks(work, blocks, a);
    launch_blocks(work, blocks, b);
    OK(cuEventRecord(to, b));
    OK(cuCtxSynchronize());
    return elapsed_us(from, to);
}

SNIPPET(small_kernels_of_two_streams_run_together) {
    start();
    EQUAL(two_streams(108), 100);
}

SNIPPET(large_kernels_of_two_streams_do_not) {
    start();
    EQUAL(two_streams(216), 200);
}

SNIPPET(a_stream_waits_for_an_event_of_another) {
    start();
    CUfunction work = kernel("work_us_100");
    CUstream a = stream(), b = stream();
    CUevent from = event(), middle = event(), to = event();
    OK(cuEventRecord(from, a));
    launch_blocks(work, 2, a);
    OK(cuEventRecord(middle, a));
    OK(cuStreamWaitEvent(b, middle, 0));
    launch_blocks(work, 2, b);
    OK(cuEventRecord(to, b));
    OK(cuCtxSynchronize());
    EQUAL(elapsed_us(from, to), 200);
}

SNIPPET(blocking_streams_and_the_legacy_stream_wait_for_each_other) {
    CUstream blocking;
    start();
    OK(cuStreamCreate(&blocking, 0));
    CUfunction work = kernel("work_us_100");
    CUevent from = event(), to = event();
    OK(cuEventRecord(from, blocking));
    launch_blocks(work, 2, blocking);
    launch_blocks(work, 2, NULL);
    launch_blocks(work, 2, blocking);
    OK(cuEventRecord(to, blocking));
    OK(cuCtxSynchronize());
    EQUAL(elapsed_us(from, to), 300);
}

/* With room for 25 MB on both sides. */
static void start_to_copy(void **host, CUdeviceptr *pointer) {
    start();
    OK(cuMemAllocHost_v2(host, 25 * 1000 * 1000));
    OK(cuMemAlloc_v2(pointer, 25 * 1000 * 1000));
}

SNIPPET(a_copy_takes_time_on_its_engine_beside_kernels) {
    void *host;
    CUdeviceptr pointer;
    start_to_copy(&host, &pointer);
    CUstream a = stream(), b = stream();
    CUevent from = event(), copied = event(), to = event();
    OK(cuEventRecord(from, a));
    launch(kernel("work_us_1000"), a);
    OK(cuMemcpyHtoDAsync_v2(pointer, host, 25 * 1000 * 1000, b));
    OK(cuEventRecord(copied, b));
    OK(cuStreamWaitEvent(a, copied, 0));
    launch(kernel("work_us_10"), a);
    OK(cuEventRecord(to, a));
    OK(cuCtxSynchronize());
    EQUAL(elapsed_us(from, copied), 25 * 1000 / LINK_GB + COPY_START);
    EQUAL(elapsed_us(from, to), 25 * 1000 / LINK_GB + COPY_START + 10);
}

SNIPPET(an_event_behind_a_wait_happens_no_sooner_than_what_was_waited_for) {
    void *host;
    CUdeviceptr pointer;
    start_to_copy(&host, &pointer);
    CUstream a = stream(), b = stream();
    CUevent copied = event(), behind = event();
    launch(kernel("work_us_10"), a);
    OK(cuMemcpyHtoDAsync_v2(pointer, host, 25 * 1000 * 1000, b));
    OK(cuEventRecord(copied, b));
    OK(cuStreamWaitEvent(a, copied, 0));
    OK(cuEventRecord(behind, a));
    OK(cuCtxSynchronize());
    EQUAL(elapsed_us(copied, behind), 0);
}

/* Kernel, copy, kernel in one stream: the second kernel starts without anybody waiting for it. */
SNIPPET(a_stream_goes_on_by_itself) {
    void *host;
    CUdeviceptr pointer;
    start();
    OK(cuMemAllocHost_v2(&host, 25 * 1000));
    OK(cuMemAlloc_v2(&pointer, 25 * 1000));
    CUstream a = stream();
    CUevent from = event(), to = event();
    OK(cuEventRecord(from, a));
    launch(kernel("work_us_100"), a);
    OK(cuMemcpyDtoHAsync_v2(host, pointer, 25 * 1000, a));
    launch(kernel("work_us_300"), a);
    OK(cuEventRecord(to, a));
    OK(cuEventSynchronize(to));
    EQUAL(elapsed_us(from, to), 100 + 1000 / 1000 * COPY_START + 1 + 300);
}

static void append(void *text) {
    strcat(text, "host ");
}

SNIPPET(a_host_function_runs_in_its_place) {
    char text[32] = "";
    CUdeviceptr pointer;
    unsigned value;
    start();
    OK(cuMemAlloc_v2(&pointer, 4));
    CUstream a = stream();
    launch(kernel("work_us_500"), a);
    OK(cuMemsetD32Async(pointer, 7, 1, a));
    OK(cuLaunchHostFunc(a, append, text));
    OK(cuMemcpyDtoHAsync_v2(&value, pointer, 4, a));
    EXPECT(strcmp(text, "host ") == 0); /* pageable memory: the copy has waited for all before */
    EQUAL(value, 7);
}

SNIPPET(per_thread_twins_use_the_thread_own_stream) {
    start();
    CUfunction work = kernel("work_us_100");
    CUstream other = stream();
    OK(cuLaunchKernel_ptsz(work, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery((CUstream)2));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery_ptsz(NULL));
    OK(cuStreamQuery(other));
    OK(cuCtxSynchronize());
    OK(cuStreamQuery_ptsz(NULL));
}

SNIPPET(cooperative_kernels_must_fit_at_once) {
    start();
    CUfunction work = kernel("work_us_10");
    CUlaunchAttribute together = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    CUlaunchConfig config = {217, 1, 1, 1024, 1, 1, 0, NULL, &together, 1};
    GIVES(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchKernelEx(&config, work, NULL, NULL));
    config.gridDimX = 216;
    OK(cuLaunchKernelEx(&config, work, NULL, NULL));
    GIVES(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
          cuLaunchCooperativeKernel(work, 217, 1, 1, 1024, 1, 1, 0, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuLaunchKernel(work, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL));
}

/* Launches `arguments[0]` kernels, each of which is done before the next one comes. */
SNIPPET(sparse) {
    start();
    CUfunction spin = kernel("spin_ns");
    uint64_t ns = 1;
    void *parameters[] = {&ns};
    for (int i = 0; i < atoi(arguments[0]); i++)
        OK(cuLaunchKernel(spin, 1, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL));
}

/* Launches `arguments[0]` kernels of 1 ms, says so, and stays until it is killed. */
SNIPPET(load) {
    start();
    CUfunction work = kernel("work_us_1000");
    for (int i = atoi(arguments[0]); i > 0; i--) launch(work, NULL);
    puts("loaded");
    fflush(stdout);
    pause();
}
