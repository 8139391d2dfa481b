/*
 * One thread launches into eight streams in turns, faster than the card works, which does two kernels at a time:
 * is all that was reserved charged in the end, and nothing else? By the test's own clock. The container's share is
 * so small that it saves nothing up.
 */
#include "api.h"
#include "check.h"
#include "clock.h"

#define TAKES (MS / 50)   /* two kernels together */
#define APART (MS / 1000) /* two launches */

enum { STREAMS = 8, ROUNDS = 400, SHARE = 20 /* percent, as in the limits */ };

static CUstream streams[STREAMS];

static void launch(unsigned number) {
    fake.launch_takes = number % 2 ? 0 : TAKES;
    CHECK_IS(api.cuLaunchKernel((CUfunction)0x1000, 1, 1, 1, 32, 1, 1, 0, streams[number], NULL, NULL),
             CUDA_SUCCESS);
    pass(APART);
}

static void work(void) {
    for (unsigned i = 0; i < ROUNDS * STREAMS; i++) launch(i % STREAMS);
    if (fake.free_at > clock_ns) pass(fake.free_at - clock_ns);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
}

static void open_streams(void) {
    for (int i = 0; i < STREAMS; i++)
        CHECK_IS(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
}

int main(void) {
    api_load("dlsym");
    api_start();
    open_streams();
    work();
    const struct mizar_compute *compute = &api_usage()->cards[0].compute;
    uint64_t paid_before = compute->paid_until, charged_before = compute->charged_ns;
    work();
    CHECK_IS((compute->paid_until - paid_before) * SHARE / 100, compute->charged_ns - charged_before);
    return 0;
}
