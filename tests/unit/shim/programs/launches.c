/*
 * Every way to launch: `launches NAME WAY MODE` launches by one of them, with functions looked up
 * that way, on a card whose time is `free` or `metered`.
 */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "check.h"

#define TIMES 100

static CUstream stream;
static CUfunction function = (CUfunction)0x1000;
static CUgraphExec graph = (CUgraphExec)0x2000;

#define SHAPE function, 1, 1, 1, 32, 1, 1, 0, stream, NULL

static CUresult kernel(void) {
    return api.cuLaunchKernel(SHAPE, NULL);
}
static CUresult kernel_ptsz(void) {
    return api.cuLaunchKernel_ptsz(SHAPE, NULL);
}
static CUresult configured(void) {
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    return api.cuLaunchKernelEx(&config, function, NULL, NULL);
}
static CUresult configured_ptsz(void) {
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    return api.cuLaunchKernelEx_ptsz(&config, function, NULL, NULL);
}
static CUresult cooperative(void) {
    return api.cuLaunchCooperativeKernel(SHAPE);
}
static CUresult cooperative_ptsz(void) {
    return api.cuLaunchCooperativeKernel_ptsz(SHAPE);
}
static CUresult several(void) {
    CUDA_LAUNCH_PARAMS one = {function, 1, 1, 1, 32, 1, 1, 0, stream, NULL};
    return api.cuLaunchCooperativeKernelMultiDevice(&one, 1, 0);
}
static CUresult plain(void) {
    return api.cuLaunch(function);
}
static CUresult grid(void) {
    return api.cuLaunchGrid(function, 2, 2);
}
static CUresult grid_async(void) {
    return api.cuLaunchGridAsync(function, 2, 2, stream);
}
static CUresult graph_launch(void) {
    return api.cuGraphLaunch(graph, stream);
}
static CUresult graph_launch_ptsz(void) {
    return api.cuGraphLaunch_ptsz(graph, stream);
}

static const struct {
    const char *name;
    CUresult (*launch)(void);
    int call;
} launchers[] = {
    {"cuLaunchKernel", kernel, FAKE_cuLaunchKernel},
    {"cuLaunchKernel_ptsz", kernel_ptsz, FAKE_cuLaunchKernel_ptsz},
    {"cuLaunchKernelEx", configured, FAKE_cuLaunchKernelEx},
    {"cuLaunchKernelEx_ptsz", configured_ptsz, FAKE_cuLaunchKernelEx_ptsz},
    {"cuLaunchCooperativeKernel", cooperative, FAKE_cuLaunchCooperativeKernel},
    {"cuLaunchCooperativeKernel_ptsz", cooperative_ptsz, FAKE_cuLaunchCooperativeKernel_ptsz},
    {"cuLaunchCooperativeKernelMultiDevice", several, FAKE_cuLaunchCooperativeKernelMultiDevice},
    {"cuLaunch", plain, FAKE_cuLaunch},
    {"cuLaunchGrid", grid, FAKE_cuLaunchGrid},
    {"cuLaunchGridAsync", grid_async, FAKE_cuLaunchGridAsync},
    {"cuGraphLaunch", graph_launch, FAKE_cuGraphLaunch},
    {"cuGraphLaunch_ptsz", graph_launch_ptsz, FAKE_cuGraphLaunch_ptsz},
};

/* A stream with work that is not waited for ends: its handle is not touched after that. */
static void end_streams(void) {
    CUstream kept = stream;
    CHECK_IS(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    CHECK_IS(kernel(), CUDA_SUCCESS);
    CHECK_IS(api.cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    CHECK_IS(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    CHECK_IS(kernel(), CUDA_SUCCESS);
    CHECK_IS(api.cuStreamDestroy(stream), CUDA_SUCCESS);
    stream = kept;
    CHECK_IS(kernel(), CUDA_SUCCESS);
}

static void check(size_t which, bool metered) {
    const struct mizar_compute *compute = &api_usage()->cards[0].compute;
    for (int i = 0; i < TIMES; i++) {
        CHECK_IS(launchers[which].launch(), CUDA_SUCCESS);
        CHECK_IS(fake.calls[launchers[which].call], i + 1); /* exactly this entry, once */
        usleep(100);
    }
    CHECK_IS(api.cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK(metered == (compute->charged_ns > 0));
    end_streams();
    fake.fail = 999;
    CHECK_IS(launchers[which].launch(), 999);
}

static void *launch_all(void *unused) {
    (void)unused;
    api_use(0);
    for (int i = 0; i < TIMES; i++) {
        for (size_t which = 0; which < sizeof launchers / sizeof *launchers; which++)
            CHECK_IS(launchers[which].launch(), CUDA_SUCCESS);
        if (i % 10 == 0) CHECK_IS(api.cuStreamSynchronize(stream), CUDA_SUCCESS);
    }
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    return NULL;
}

/* All ways at once, by threads that share streams and cards; for sanitizers. */
static void storm(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) CHECK(!pthread_create(&threads[i], NULL, launch_all, NULL));
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
}

int main(int count, char **arguments) {
    bool found = false;
    size_t number = sizeof launchers / sizeof *launchers;
    for (size_t i = 0; count < 4 && i < number; i++) puts(launchers[i].name);
    if (count < 4) return 0;
    api_load(arguments[2]);
    api_start();
    CHECK_IS(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    if (!strcmp(arguments[1], "storm")) return storm(), 0;
    for (size_t i = 0; i < number; i++)
        if (!strcmp(launchers[i].name, arguments[1]))
            check(i, !strcmp(arguments[3], "metered")), found = true;
    CHECK(found);
    return 0;
}
