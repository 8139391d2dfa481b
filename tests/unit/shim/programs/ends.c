/*
 * Contexts, pools and streams that are destroyed while other threads settle what the program left there:
 * `ends NAME`. 64 MiB of card 0 are allowed, more than it has; its time is metered.
 */
#include <unistd.h>

#include "api.h"
#include "beside.h"
#include "cases.h"

#define HANGS_S 20
#define MANY 100 /* launches */
#define SOON 20000 /* us within which another thread gets into a call, if nothing blocks it */

static CUcontext other;
static CUstream at_home, in_other;
static CUdeviceptr pointer;

static const uint64_t *charged_ns(void) {
    return &api_usage()->cards[0].compute.charged_ns;
}

static void launch(CUstream stream) {
    CUfunction function = (CUfunction)0x1000;
    CHECK_IS(api.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), CUDA_SUCCESS);
}

/* Looks after all that is done. */
static void wait_at_home(void) {
    CHECK_IS(api.cuStreamSynchronize(at_home), CUDA_SUCCESS);
}

static void work_at_home(void) {
    launch(at_home);
    wait_at_home();
}

static void destroy(void) {
    CHECK_IS(api.cuCtxDestroy_v2(other), fake.frees_nothing ? 999 : CUDA_SUCCESS);
}

static void release(void) {
    CHECK_IS(api.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

static void reset(void) {
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
}

/* ---- work that is not measured yet ---- */

static void work(void) {
    launch(in_other);
    fake.busy = 1;
    launch(in_other);
    while_in(FAKE_cuCtxDestroy_v2, destroy, wait_at_home);
}

static void measured(void) {
    work();
    wait_at_home();
    CHECK_IS(fake.stale, 0);
}

static void measured_if_kept(void) {
    fake.frees_nothing = 1;
    work();
    fake.busy = 0;
    CHECK_IS(*charged_ns(), 0);
    wait_at_home();
    CHECK(*charged_ns() > 0);
}

/* Another user of the context goes on working. */
static void measured_if_shared(void) {
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&home, 0), CUDA_SUCCESS);
    fake.busy = 1;
    while_in(FAKE_cuDevicePrimaryCtxRelease_v2, release, work_at_home);
    fake.busy = 0;
    CHECK_IS(*charged_ns(), 0);
    wait_at_home();
    CHECK(*charged_ns() > 0);
}

/* ---- a thread that works elsewhere meanwhile does not wait ---- */

static CUgreenCtx green;

/* This would block forever. */
static void work_elsewhere(void) {
    const CUmemAllocationProp here = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUmodule module;
    CUcontext view;
    work_at_home();
    CHECK_IS(api.cuMemAlloc_v2(&pointer, MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAllocAsync(&pointer, MIB, at_home), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFreeAsync(pointer, at_home), CUDA_SUCCESS);
    CHECK_IS(api.cuMemCreate(&handle, 2 * MIB, &here, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleLoadData(&module, ""), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleUnload(module), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxFromGreenCtx(&view, green), CUDA_SUCCESS);
}

static void worked_elsewhere(void) {
    CUcontext view;
    CHECK_IS(api.cuGreenCtxCreate(&green, NULL, 0, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxFromGreenCtx(&view, green), CUDA_SUCCESS);
    alarm(HANGS_S);
    while_in(FAKE_cuCtxDestroy_v2, destroy, work_elsewhere);
}

/* ---- memory that is freed once a stream of another context has reached the free ---- */

static void free_late(void) {
    fake.busy = 1;
    CHECK_IS(api.cuMemFreeAsync(pointer, in_other), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
}

static void import(void) {
    CHECK_IS(api.cuMemPoolImportPointer(&pointer, NULL, NULL), CUDA_SUCCESS);
}

/* Allocated in place of a pool's memory; the driver does not free it in the order of a stream. */
static void stand_in(void) {
    fake.card_full = fake.keeps_managed = 1;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, at_home), CUDA_SUCCESS);
}

/* It is unknown when the driver frees it. */
static void freed_by_driver(void) {
    import();
    free_late();
    while_in(FAKE_cuCtxDestroy_v2, destroy, wait_at_home);
    fake.busy = 0;
    wait_at_home();
    CHECK_IS(fake.stale, 0);
    CHECK_IS(api_used(0), 40 * MIB);
    reset();
    CHECK_IS(api_used(0), 0);
}

static void freed_if_kept(void) {
    import();
    free_late();
    fake.frees_nothing = 1;
    destroy();
    fake.busy = fake.frees_nothing = 0;
    wait_at_home();
    CHECK_IS(api_used(0), 0);
}

static void freed_by_us(void) {
    stand_in();
    free_late();
    while_in(FAKE_cuCtxDestroy_v2, destroy, wait_at_home);
    CHECK_IS(fake.calls[FAKE_cuMemFree_v2], 0);
    wait_at_home();
    CHECK_IS(fake.stale, 0);
    CHECK_IS(fake.calls[FAKE_cuMemFree_v2], 1);
    CHECK_IS(api_used(0), 0);
}

/* Its own context does not end while some of it is just being freed, and nothing is freed then. */
static void freed_before(void) {
    stand_in();
    free_late();
    fake.busy = 0;
    pthread_t frees = begin_in(FAKE_cuMemFree_v2, wait_at_home), ends = begin_beside(reset);
    usleep(SOON);
    end_in(frees);
    CHECK(!pthread_join(ends, NULL));
    CHECK_IS(fake.stale, 0);
    CHECK_IS(api_used(0), 0);
    import();
    wait_at_home();
    CHECK_IS(api_used(0), 40 * MIB); /* it was given back once */
}

static void freed_after(void) {
    stand_in();
    free_late();
    fake.busy = 0;
    while_in(FAKE_cuDevicePrimaryCtxReset_v2, reset, wait_at_home);
    CHECK_IS(fake.calls[FAKE_cuMemFree_v2], 0);
    CHECK_IS(fake.stale, 0);
    CHECK_IS(api_used(0), 0);
}

/* ---- pools that are destroyed while another thread reads how much they hold ---- */

static CUmemoryPool new_pool(void) {
    const CUmemPoolProps props = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CHECK_IS(api.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    return pool;
}

static void pool_looked_at(void) {
    CUmemoryPool pool = new_pool();
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, MIB, pool, at_home), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFreeAsync(pointer, at_home), CUDA_SUCCESS);
    pthread_t looks = begin_in(FAKE_cuMemPoolGetAttribute, wait_at_home);
    fake.pool_reserved = 0;
    CHECK_IS(api.cuMemPoolDestroy(pool), CUDA_SUCCESS);
    CHECK_IS(fake.calls[FAKE_cuMemPoolDestroy], 0);
    end_in(looks);
    wait_at_home();
    CHECK_IS(fake.stale, 0);
    CHECK_IS(fake.calls[FAKE_cuMemPoolDestroy], 1);
    CHECK_IS(api_used(0), 0);
}

/* ---- streams that are destroyed while another thread ends its grants for all streams it used ---- */

static CUstream handed_over;

/* The cost of a launch is known by then, and the last one was paid from a grant. */
static void launch_and_wait_for_all(void) {
    for (int i = 0; i < MANY; i++) launch(handed_over);
    __atomic_store_n(&fake.stays_in, FAKE_cuEventRecord + 1, __ATOMIC_RELEASE);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
}

static void destroy_stream(void) {
    CHECK_IS(api.cuStreamDestroy_v2(handed_over), CUDA_SUCCESS);
}

static void stream_touched(void) {
    CHECK_IS(cuStreamCreate(&handed_over, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    pthread_t touches = begin_beside(launch_and_wait_for_all);
    await_in();
    pthread_t ends = begin_beside(destroy_stream);
    usleep(SOON);
    end_in(touches);
    CHECK(!pthread_join(ends, NULL));
    CHECK_IS(fake.stale, 0);
}

static const struct test_case cases[] = {
    {"measured", measured},
    {"measured_if_kept", measured_if_kept},
    {"measured_if_shared", measured_if_shared},
    {"worked_elsewhere", worked_elsewhere},
    {"freed_by_driver", freed_by_driver},
    {"freed_if_kept", freed_if_kept},
    {"freed_by_us", freed_by_us},
    {"freed_before", freed_before},
    {"freed_after", freed_after},
    {"pool_looked_at", pool_looked_at},
    {"stream_touched", stream_touched},
};

int main(int count, char **arguments) {
    if (count < 3) return cases_list(cases, sizeof cases / sizeof *cases), 0;
    api_load(arguments[2]);
    api_start();
    CHECK_IS(cuStreamCreate(&at_home, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_IS(cuCtxGetCurrent(&home), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    CHECK_IS(cuStreamCreate(&in_other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_IS(cuCtxSetCurrent(home), CUDA_SUCCESS);
    cases_run(cases, sizeof cases / sizeof *cases, arguments[1]);
    return 0;
}
