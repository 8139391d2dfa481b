/*
 * Contexts on the first card. Says `ready`, and when it reads a line keeps the card busy from the one
 * made last until it is killed.
 *     contexts many COUNT   COUNT contexts, each of which has launched something
 *     contexts behind       two: the newer one has a long kernel on the card, the older one is idle
 *     contexts green        launches go into a green one, while it is current or another or none
 */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "api.h"
#include "check.h"

#define PIECE UINT64_C(200000) /* ns */
#define LONG (100000 * PIECE)

enum { AHEAD = 8 };

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);

static void *driver;
static CUstream stream; /* to launch into */
static CUcontext contexts[4];

static void launch(CUfunction spin, unsigned blocks, uint64_t ns) {
    void *parameters[] = {&ns};
    CHECK_IS(api.cuLaunchKernel(spin, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL),
             CUDA_SUCCESS);
}

/* Makes one current, and returns a function of it. */
static CUfunction make_context(CUcontext *context) {
    __typeof__(&cuModuleGetFunction) get_function = dlsym(driver, "cuModuleGetFunction");
    static const char image[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                                ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";
    CUmodule module;
    CUfunction spin;
    CHECK_IS(api.cuCtxCreate_v2(context, 0, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleLoadData(&module, image), CUDA_SUCCESS);
    CHECK_IS(get_function(&spin, module, "spin_ns"), CUDA_SUCCESS);
    return spin;
}

static CUfunction many(int count) {
    CUcontext context;
    CUfunction spin = NULL;
    for (int i = 0; i < count; i++) {
        spin = make_context(&context);
        launch(spin, 108, PIECE);
    }
    return spin;
}

static CUfunction behind(void) {
    __typeof__(&cuCtxSetCurrent) set_current = dlsym(driver, "cuCtxSetCurrent");
    CUcontext older, newer;
    CUfunction first = make_context(&older);
    launch(first, 1, PIECE);
    CUfunction second = make_context(&newer);
    launch(second, 1, LONG);
    CHECK_IS(set_current(older), CUDA_SUCCESS);
    launch(first, 1, PIECE);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_IS(set_current(newer), CUDA_SUCCESS);
    return second;
}

static CUfunction green(void) {
    __typeof__(&cuGreenCtxStreamCreate) create = dlsym(driver, "cuGreenCtxStreamCreate");
    CUgreenCtx made;
    CHECK_IS(api.cuGreenCtxCreate(&made, NULL, 0, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxFromGreenCtx(&contexts[0], made), CUDA_SUCCESS);
    CHECK_IS(create(&stream, made, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&contexts[1], 0), CUDA_SUCCESS);
    return make_context(&contexts[2]);
}

/* Of those there are, whichever comes next, or none. */
static void change_context(void) {
    static size_t next;
    __typeof__(&cuCtxSetCurrent) set_current = dlsym(driver, "cuCtxSetCurrent");
    CHECK_IS(set_current(contexts[next++ % 4]), CUDA_SUCCESS);
}

static CUfunction begin(int count, char **arguments) {
    if (count > 2) return many(atoi(arguments[2]));
    return strcmp(arguments[1], "green") ? behind() : green();
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    api_load("dlsym");
    CHECK_IS(api.cuInit(0), CUDA_SUCCESS);
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CUfunction spin = begin(count, arguments);
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    for (;;) {
        if (stream) change_context();
        for (int i = 0; i < AHEAD; i++) launch(spin, 108, PIECE);
        CHECK_IS(stream ? api.cuStreamSynchronize(stream) : api.cuCtxSynchronize(), CUDA_SUCCESS);
    }
}
