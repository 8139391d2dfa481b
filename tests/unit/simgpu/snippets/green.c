/* Green contexts. */
#include <pthread.h>

#include "snippet.h"

enum { LAUNCHES = 4 };

static CUgreenCtx green;
static CUstream inside;
static CUfunction work;

static CUcontext start_green(void) {
    CUcontext view, whole = start();
    work = kernel("work_us_10");
    OK(cuGreenCtxCreate(&green, NULL, 0, 1));
    OK(cuGreenCtxStreamCreate(&inside, green, 1, 0));
    OK(cuCtxFromGreenCtx(&view, green));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(view != whole);
    return view;
}

SNIPPET(a_green_context_is_a_view_of_the_primary_one) {
    CUcontext view = start_green(), whole, found;
    CUgreenCtx known;
    CUdeviceptr pointer;
    int active;
    OK(cuStreamGetCtx(inside, &found));
    EXPECT(found == view);
    OK(cuCtxGetCurrent(&whole));
    OK(cuStreamGetCtx_v2(inside, &found, &known));
    EXPECT(found == whole && known == green);
    OK(cuStreamGetGreenCtx(stream(), &known));
    EXPECT(!known);
    OK(cuCtxSetCurrent(view));
    size_t before = used();
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    EQUAL(used() - before, 4 * MIB);
    OK(cuMemFree_v2(pointer));
    OK(cuDevicePrimaryCtxGetState(0, &(unsigned){0}, &active));
    EQUAL(active, 1);
    OK(cuGreenCtxDestroy(green));
    OK(cuDevicePrimaryCtxGetState(0, &(unsigned){0}, &active));
    EQUAL(active, 0);
}

static void launch_all(void) {
    for (int i = 0; i < LAUNCHES; i++) launch(work, inside);
}

static void *launch_beside(void *unused) {
    (void)unused;
    launch_all();
    return NULL;
}

/* A stream's work needs no context but the stream's own. */
SNIPPET(work_comes_into_a_green_context_from_anywhere) {
    CUcontext view = start_green(), other;
    CUevent from = event(), to = event();
    pthread_t thread;
    OK(cuEventRecord(from, inside));
    launch_all();
    OK(cuCtxSetCurrent(NULL));
    launch_all();
    OK(cuCtxSetCurrent(view));
    launch_all();
    EXPECT(!pthread_create(&thread, NULL, launch_beside, NULL));
    EXPECT(!pthread_join(thread, NULL));
    OK(cuCtxCreate_v2(&other, 0, 0));
    launch_all();
    OK(cuEventRecord(to, inside));
    OK(cuStreamSynchronize(inside));
    EQUAL(elapsed_us(from, to), 5 * LAUNCHES * 10);
}
