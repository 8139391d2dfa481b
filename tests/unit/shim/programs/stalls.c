/*
 * Calls that may stall a stream: `stalls all WAY` calls every such function, looked up that way;
 * `stalls metered WAY` checks what becomes of grants for the launches before;
 * `stalls thread WAY` checks what becomes of them when a thread ends.
 */
#include <pthread.h>
#include <string.h>

#include "api.h"
#include "cases.h"
#include "check.h"
#include "granted.h"

#define THERE 0x1000
#define LONG (100 * MS)
#define FOR_EVER (3600000 * MS)
#define PATIENCE (200 * MS) /* with work that does not end */

static CUstream stream;
static CUevent event;
static CUcontext home, context; /* the current one, and that which calls name ... */
static CUgreenCtx green;        /* ... or this: one of the primary ones will do as well */
static CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

#define LEGACY ((CUstream)(uintptr_t)CU_STREAM_LEGACY)

/* CALL(symbol, arguments) */
#define CALLS(CALL) \
    CALL(cuLaunchHostFunc, (stream, NULL, NULL)) \
    CALL(cuLaunchHostFunc_ptsz, (stream, NULL, NULL)) \
    CALL(cuLaunchHostFunc_v2, (stream, NULL, NULL, 0)) \
    CALL(cuLaunchHostFunc_v2_ptsz, (stream, NULL, NULL, 0)) \
    CALL(cuStreamAddCallback, (stream, NULL, NULL, 0)) \
    CALL(cuStreamAddCallback_ptsz, (stream, NULL, NULL, 0)) \
    CALL(cuStreamWaitEvent, (stream, event, 0)) \
    CALL(cuStreamWaitEvent_ptsz, (stream, event, 0)) \
    CALL(cuCtxWaitEvent, (context, event)) \
    CALL(cuGreenCtxWaitEvent, (green, event)) \
    CALL(cuStreamWaitValue32, (stream, THERE, 1, 0)) \
    CALL(cuStreamWaitValue32_ptsz, (stream, THERE, 1, 0)) \
    CALL(cuStreamWaitValue32_v2, (stream, THERE, 1, 0)) \
    CALL(cuStreamWaitValue32_v2_ptsz, (stream, THERE, 1, 0)) \
    CALL(cuStreamWaitValue64, (stream, THERE, 1, 0)) \
    CALL(cuStreamWaitValue64_ptsz, (stream, THERE, 1, 0)) \
    CALL(cuStreamWaitValue64_v2, (stream, THERE, 1, 0)) \
    CALL(cuStreamWaitValue64_v2_ptsz, (stream, THERE, 1, 0)) \
    CALL(cuStreamBatchMemOp, (stream, 1, NULL, 0)) \
    CALL(cuStreamBatchMemOp_ptsz, (stream, 1, NULL, 0)) \
    CALL(cuStreamBatchMemOp_v2, (stream, 1, NULL, 0)) \
    CALL(cuStreamBatchMemOp_v2_ptsz, (stream, 1, NULL, 0)) \
    CALL(cuWaitExternalSemaphoresAsync, (NULL, NULL, 1, stream)) \
    CALL(cuWaitExternalSemaphoresAsync_ptsz, (NULL, NULL, 1, stream)) \
    CALL(cuMemPrefetchAsync, (THERE, 10, 0, stream)) \
    CALL(cuMemPrefetchAsync_ptsz, (THERE, 10, 0, stream)) \
    CALL(cuMemPrefetchAsync_v2, (THERE, 10, location, 0, stream)) \
    CALL(cuMemPrefetchAsync_v2_ptsz, (THERE, 10, location, 0, stream)) \
    CALL(cuMemPrefetchBatchAsync, (NULL, NULL, 1, NULL, NULL, 1, 0, stream)) \
    CALL(cuMemPrefetchBatchAsync_ptsz, (NULL, NULL, 1, NULL, NULL, 1, 0, stream)) \
    CALL(cuMemDiscardAndPrefetchBatchAsync, (NULL, NULL, 1, NULL, NULL, 1, 0, stream)) \
    CALL(cuMemDiscardAndPrefetchBatchAsync_ptsz, (NULL, NULL, 1, NULL, NULL, 1, 0, stream)) \
    CALL(cuMemBatchDecompressAsync, (NULL, 1, 0, NULL, stream)) \
    CALL(cuMemBatchDecompressAsync_ptsz, (NULL, 1, 0, NULL, stream)) \
    CALL(cuFabricCpyBatchAsync, (1, NULL, 0, stream)) \
    CALL(cuFabricCpyBatchAsync_ptsz, (1, NULL, 0, stream))

#define FUNCTION(symbol, arguments)      \
    static CUresult do_##symbol(void) {  \
        return api.symbol arguments;     \
    }
CALLS(FUNCTION)

#define ROW(symbol, arguments) {#symbol, do_##symbol, FAKE_##symbol},
static const struct call {
    const char *name;
    CUresult (*call)(void);
    int number;
} calls[] = {CALLS(ROW)};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Each call reaches exactly that entry of the driver, and returns the driver's result. */
static void all(void) {
    for (size_t i = 0; i < COUNT(calls); i++) {
        CHECK_IS(calls[i].call(), CUDA_SUCCESS);
        CHECK_IS(fake.calls[calls[i].number], 1);
        fake.fail = 999;
        CHECK_IS(calls[i].call(), 999);
        fake.fail = 0;
    }
}

/* ---- grants for the stream end ---- */

static bool waits_for_event(const struct call *each) {
    return strstr(each->name, "WaitEvent") != NULL;
}

static void check_each(const struct call *each) {
    CUgraph graph;
    CHECK_IS(gives_back(each->call, stream), !waits_for_event(each)); /* it has happened */
    fake.pending = event;
    CHECK(gives_back(each->call, stream));
    CHECK_IS(api.cuStreamBeginCapture_v2(stream, 0), CUDA_SUCCESS);
    CHECK(!gives_back(each->call, stream)); /* it is recorded, and holds nothing up */
    CHECK_IS(api.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    fake.pending = NULL;
}

static CUresult call_back(void) {
    return api.cuLaunchHostFunc(stream, NULL, NULL);
}

static CUresult call_back_legacy(void) {
    return api.cuLaunchHostFunc(LEGACY, NULL, NULL);
}

/* What ended for the stream that was used last is no sign for the others. */
static CUresult call_back_and_wait(void) {
    launch(stream);
    CHECK_IS(call_back(), CUDA_SUCCESS);
    return api.cuCtxSynchronize();
}

/* The legacy stream and all blocking streams wait for each other; non-blocking ones do not. */
static void legacy(void) {
    CUstream blocking = stream;
    CHECK(gives_back(call_back_legacy, stream));
    CHECK(gives_back(call_back, LEGACY));
    CHECK_IS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK(!gives_back(call_back, LEGACY));
    CHECK(!gives_back(call_back, blocking));
    CHECK(gives_back(call_back_and_wait, blocking));
}

static CUresult wait_for_event(void) {
    return api.cuCtxWaitEvent(context, event);
}

static CUresult wait_for_event_in_green(void) {
    return api.cuGreenCtxWaitEvent(green, event);
}

static CUresult wait_in_context(void) {
    return api.cuCtxSynchronize_v2(context);
}

static CUstream stream_in(CUcontext there) {
    CUstream made;
    CHECK_IS(cuCtxSetCurrent(there), CUDA_SUCCESS);
    CHECK_IS(cuStreamCreate(&made, 0), CUDA_SUCCESS);
    CHECK_IS(cuCtxSetCurrent(home), CUDA_SUCCESS);
    return made;
}

static CUresult wait_for_stream(void) {
    return api.cuStreamSynchronize(stream);
}

/* A stream's own context is enough, in whichever way the driver reports it. */
static void launch_from_nowhere(CUstream on) {
    stream = on;
    CHECK_IS(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    for (fake.hides_green = 0; fake.hides_green < 2; fake.hides_green++)
        CHECK(gives_back(wait_for_stream, on));
    fake.hides_green = 0;
    CHECK_IS(cuCtxSetCurrent(home), CUDA_SUCCESS);
}

/* Calls that name a context mean that one, whichever is current; and so do streams. */
static void elsewhere(void) {
    CUcontext other, view, now;
    CHECK_IS(api.cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuGreenCtxCreate(&green, NULL, 0, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxFromGreenCtx(&view, green), CUDA_SUCCESS);
    CUstream in_other = stream_in(other), in_green = stream_in(view), at_home = stream_in(home);
    fake.pending = event;
    context = other;
    CHECK(gives_back(wait_for_event, in_other));
    CHECK(gives_back(wait_in_context, in_other));
    CHECK(!gives_back(wait_for_event, at_home));
    CHECK(!gives_back(wait_in_context, at_home));
    CHECK(gives_back(wait_for_event_in_green, in_green));
    CHECK(!gives_back(wait_for_event_in_green, in_other));
    context = NULL;
    CHECK(gives_back(wait_in_context, at_home));
    launch_from_nowhere(in_green);
    stream = stream_in(other);
    CHECK(!gives_back(call_back, LEGACY));
    CHECK_IS(cuCtxGetCurrent(&now), CUDA_SUCCESS);
    CHECK(now == home);
    fake.pending = NULL;
}

static void metered(void) {
    CUstream first = stream;
    for (size_t i = 0; i < COUNT(calls); i++) check_each(&calls[i]);
    legacy();
    stream = first;
    elsewhere();
    CHECK(api_usage()->cards[0].compute.charged_ns > 0);
}

static void launch_one(CUfunction function, CUstream on, uint64_t takes) {
    fake.launch_takes = takes;
    CHECK_IS(api.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, NULL, NULL), CUDA_SUCCESS);
}

/* A kernel waits on the card, until a third one is launched behind a long one. */
static void begun(void) {
    CUfunction waits = (CUfunction)0x5000, is_long = (CUfunction)0x6000;
    CUstream other = stream_in(home);
    for (int i = 0; i < LAUNCHES; i++) {
        launch_one(is_long, stream, LONG);
        pass(LONG);
        CHECK_IS(api.cuStreamSynchronize(stream), CUDA_SUCCESS);
    }
    pass(LONG);
    launch_one(waits, other, FOR_EVER);
    pass(TAKES);
    launch_one(is_long, stream, LONG);
    uint64_t before = atomic_load(&clock_ns);
    launch_one(waits, stream, TAKES);
    uint64_t waited = atomic_load(&clock_ns) - before;
    CHECK(waited > PATIENCE && waited < 10 * PATIENCE);
    fake.launch_takes = fake.free_at = 0;
}

static void *be_granted_and_end(void *before) {
    CHECK_IS(cuCtxSetCurrent(home), CUDA_SUCCESS);
    be_granted(stream);
    *(uint64_t *)before = reserved_until();
    return NULL;
}

/* The rest of a thread's grants goes back to the container when the thread ends. */
static void thread(void) {
    pthread_t one;
    uint64_t before;
    CHECK(!pthread_create(&one, NULL, be_granted_and_end, &before));
    CHECK(!pthread_join(one, NULL));
    CHECK(reserved_until() + GRANTED < before);
}

static const struct test_case cases[] = {
    {"all", all},
    {"metered", metered},
    {"begun", begun},
    {"thread", thread},
};

int main(int count, char **arguments) {
    if (count < 3) return cases_list(cases, COUNT(cases)), 0;
    api_load(arguments[2]);
    api_start();
    CHECK_IS(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    CHECK_IS(cuEventCreate(&event, 0), CUDA_SUCCESS);
    CHECK_IS(cuCtxGetCurrent(&home), CUDA_SUCCESS);
    context = home;
    green = (CUgreenCtx)home;
    cases_run(cases, COUNT(cases), arguments[1]);
    return 0;
}
