/*
 * `contexts COUNT`: makes so many contexts on the first card, and has each launch something once.
 * Says `ready`, and when it reads a line keeps the card busy from the last one until it is killed.
 */
#include <signal.h>
#include <sys/prctl.h>

#include "api.h"
#include "check.h"

#define PIECE UINT64_C(200000) /* ns */

enum { AHEAD = 8 };

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);

static void launch(CUfunction spin) {
    uint64_t ns = PIECE;
    void *parameters[] = {&ns};
    CHECK_IS(api.cuLaunchKernel(spin, 108, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL), CUDA_SUCCESS);
}

static CUfunction make_context(void *driver) {
    __typeof__(&cuModuleGetFunction) get_function = dlsym(driver, "cuModuleGetFunction");
    static const char image[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                                ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";
    CUcontext context;
    CUmodule module;
    CUfunction spin;
    CHECK_IS(api.cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleLoadData(&module, image), CUDA_SUCCESS);
    CHECK_IS(get_function(&spin, module, "spin_ns"), CUDA_SUCCESS);
    launch(spin);
    return spin;
}

int main(int count, char **arguments) {
    CUfunction spin = NULL;
    CHECK(count > 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    api_load("dlsym");
    CHECK_IS(api.cuInit(0), CUDA_SUCCESS);
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    for (int left = atoi(arguments[1]); left; left--) spin = make_context(driver);
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    for (;;) {
        for (int i = 0; i < AHEAD; i++) launch(spin);
        CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    }
}
