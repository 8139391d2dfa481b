/*
 * Contexts on the first card. Says `ready`, and when it reads a line keeps the card busy from the one
 * made last until it is killed.
 *     contexts many COUNT   so many, each of which has launched something
 *     contexts behind       two: the newer one has a long kernel on the card, the older one is idle
 */
#include <signal.h>
#include <sys/prctl.h>

#include "api.h"
#include "check.h"

#define PIECE UINT64_C(200000) /* ns */
#define LONG (100000 * PIECE)

enum { AHEAD = 8 };

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);

static void *driver;

static void launch(CUfunction spin, unsigned blocks, uint64_t ns) {
    void *parameters[] = {&ns};
    CHECK_IS(api.cuLaunchKernel(spin, blocks, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL),
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

int main(int count, char **arguments) {
    CHECK(count > 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    api_load("dlsym");
    CHECK_IS(api.cuInit(0), CUDA_SUCCESS);
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CUfunction spin = count > 2 ? many(atoi(arguments[2])) : behind();
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    for (;;) {
        for (int i = 0; i < AHEAD; i++) launch(spin, 108, PIECE);
        CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    }
}
