/*
 * The hot path makes no system call: `hot WORK` warms up, forbids itself every system call except
 * exit and write, and goes on. WORK is
 *     alloc      memory is taken and given back
 *     meminfo    cuMemGetInfo
 *     launch     a kernel is launched, paid from a grant
 * Kernels take 1 us by the test's own clock, so that no process has to wait for its share.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api.h"
#include "check.h"
#include "clock.h"

enum { WARM_UP = 2000, TIMES = 5000 };

/* A small one, which shares its page, and a large one. */
static void alloc(void) {
    CUdeviceptr small, large;
    CHECK_IS(api.cuMemAlloc_v2(&small, 4096), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&large, 4 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFree_v2(small), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFree_v2(large), CUDA_SUCCESS);
}

static void meminfo(void) {
    size_t free_now, total;
    CHECK_IS(api.cuMemGetInfo_v2(&free_now, &total), CUDA_SUCCESS);
}

static void launch(void) {
    CHECK_IS(api.cuLaunchKernel((CUfunction)0x1000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL),
             CUDA_SUCCESS);
    pass(MS / 1000);
}

static void fail(void) {
    CHECK(!"somebody sleeps");
}

static const struct {
    const char *name;
    void (*once)(void);
} works[] = {{"alloc", alloc}, {"meminfo", meminfo}, {"launch", launch}};

/* Any other system call is killed by SIGSYS. */
static void forbid_system_calls(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

int main(int count, char **arguments) {
    void (*once)(void) = NULL;
    for (size_t i = 0; count > 1 && i < sizeof works / sizeof *works; i++)
        if (!strcmp(works[i].name, arguments[1])) once = works[i].once;
    CHECK(once);
    api_load("dlsym");
    api_start();
    for (int i = 0; i < WARM_UP; i++) once();
    while_asleep = fail;
    forbid_system_calls();
    for (int i = 0; i < TIMES; i++) once();
    _exit(0);
}
