#include <pthread.h>

#include "snippet.h"

enum { THREADS = 4, ROUNDS = 300 };

static CUcontext shared;
static CUfunction work;
static CUevent between;

static void round_of(CUstream own, CUevent mine, char *host, unsigned number) {
    CUdeviceptr pointer;
    CUresult result = cuMemAllocAsync(&pointer, (size_t)(number % 7 + 1) << 19, own);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    launch_blocks(work, number % 400 + 1, number % 3 ? own : NULL);
    OK(cuEventRecord(mine, own));
    OK(cuStreamWaitEvent(NULL, mine, 0));
    if (!result) OK(cuMemcpyHtoDAsync_v2(pointer, host, 64, own));
    if (!result) OK(cuMemFreeAsync(pointer, own));
    if (number % 16 == 0) OK(cuStreamSynchronize(own));
    if (number % 32 == 0) OK(cuEventSynchronize(between));
}

static void *use_the_card(void *nothing) {
    char host[64] = "";
    (void)nothing;
    OK(cuCtxSetCurrent(shared));
    CUstream own = stream();
    CUevent mine = event();
    for (unsigned i = 0; i < ROUNDS; i++) round_of(own, mine, host, i);
    OK(cuStreamSynchronize(own));
    OK(cuEventDestroy_v2(mine));
    OK(cuStreamDestroy_v2(own));
    return NULL;
}

SNIPPET(threads_may_use_one_context_together) {
    pthread_t threads[THREADS];
    shared = start();
    work = kernel("work_us_10");
    between = event();
    size_t before = used();
    OK(cuEventRecord(between, NULL));
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, use_the_card, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    OK(cuCtxSynchronize());
    EQUAL(used(), before);
}
