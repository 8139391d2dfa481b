/*
 * A CUDA program driven by its input, one command a line, one answer a line: tests that need
 * several processes in a certain order are written with it in Python.
 *
 *   init | use DEVICE | alloc BYTES | free NUMBER | info | total DEVICE | pid | fork | vfork | raw
 *   exec | setuid UID | exit
 */
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"
#include "check.h"

static CUdeviceptr pointers[1000];
static int live;
static char **arguments;

static void answer(long long code, long long detail) {
    printf("%lld %lld\n", code, detail);
    fflush(stdout);
}

static void do_alloc(unsigned long long bytes) {
    CUresult result = api.cuMemAlloc_v2(&pointers[live], bytes);
    answer(result, result == CUDA_SUCCESS ? live++ : -1);
}

static void do_info(void) {
    size_t free_now = 0, total = 0;
    CUresult result = api.cuMemGetInfo_v2(&free_now, &total);
    answer(result == CUDA_SUCCESS ? (long long)free_now : -result, (long long)total);
}

static CUresult do_use(CUdevice device) {
    CUcontext context;
    CUresult result = api.cuDevicePrimaryCtxRetain(&context, device);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

static void do_total(CUdevice device) {
    size_t bytes = 0;
    CUresult result = api.cuDeviceTotalMem_v2(&bytes, device);
    answer(result, (long long)bytes);
}

/* The parent waits while the child takes over input and output. */
static void do_fork(long child) {
    if (child == 0) {
        answer(0, getpid());
        return;
    }
    int status;
    waitpid((pid_t)child, &status, 0);
    answer(status, getpid());
}

static void do_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    do_fork(child);
}

static bool obey(const char *word, unsigned long long number) {
    if (!strcmp(word, "init")) answer(api.cuInit(0), 0);
    else if (!strcmp(word, "use")) answer(do_use((CUdevice)number), 0);
    else if (!strcmp(word, "alloc")) do_alloc(number);
    else if (!strcmp(word, "free")) answer(api.cuMemFree_v2(pointers[number]), 0);
    else if (!strcmp(word, "info")) do_info();
    else if (!strcmp(word, "total")) do_total((CUdevice)number);
    else if (!strcmp(word, "pid")) answer(getpid(), 0);
    else if (!strcmp(word, "fork")) do_fork(fork());
    else if (!strcmp(word, "raw")) do_fork(syscall(SYS_fork));
    else if (!strcmp(word, "vfork")) do_vfork();
    else if (!strcmp(word, "exec")) execv("/proc/self/exe", arguments);
    else if (!strcmp(word, "setuid")) answer(setuid((uid_t)number), 0);
    else return false;
    return true;
}

int main(int count, char **values) {
    char line[128], word[64];
    arguments = values;
    api_load(count > 1 ? values[1] : "dlsym");
    setvbuf(stdin, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long number = 0;
        if (sscanf(line, "%63s %llu", word, &number) < 1 || !obey(word, number)) break;
    }
    return 0;
}
