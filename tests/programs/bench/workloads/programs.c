/*
 * Keeps a card busy like a program of many threads or functions, until it is killed: `programs
 * WAY`. Prints `ready` when it has a context, and begins when it reads a line.
 *     short_lived  eight threads, each of which launches a little and ends; then eight others
 *     workers      sixteen threads that launch ten kernels of 20 us, pause for 10 ms, and never wait
 *     functions    one thread that launches 5,000 functions in turn, and waits after each thousand
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "spin.h"

enum { US = 1000, MS = 1000 * US };
enum { FUNCTIONS = 5000, BETWEEN_WAITS = 1000, LINE = 64 };
enum { SHORT_LIVED = 8, UNIT = 25, WORKERS = 16, BURST = 10, NON_BLOCKING = 1 };

static unsigned blocks;

static CUstream new_stream(void) {
    CUstream stream;
    DO(cuStreamCreate, &stream, NON_BLOCKING);
    return stream;
}

static void launch(CUstream stream) {
    uint64_t ns = 20 * US;
    void *parameters[] = {&ns};
    DO(cuLaunchKernel, spin, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL);
}

static void *launch_some(void *stream) {
    DO(cuCtxSetCurrent, context);
    for (int i = 0; i < UNIT; i++) launch(stream);
    return NULL;
}

static void *launch_now_and_then(void *stream) {
    DO(cuCtxSetCurrent, context);
    for (;;) {
        for (int i = 0; i < BURST; i++) launch(stream);
        nanosleep(&(struct timespec){0, 10 * MS}, NULL);
    }
}

static void run(int count, void *(*work)(void *), CUstream *streams) {
    pthread_t threads[WORKERS];
    for (int i = 0; i < count; i++) CHECK(!pthread_create(&threads[i], NULL, work, streams[i]));
    for (int i = 0; i < count; i++) CHECK(!pthread_join(threads[i], NULL));
}

static void short_lived(CUstream *streams) {
    for (;;) {
        run(SHORT_LIVED, launch_some, streams);
        DO(cuCtxSynchronize);
    }
}

static void workers(CUstream *streams) {
    run(WORKERS, launch_now_and_then, streams);
}

/* Loads a module with that many kernels, each of which takes the card's default time. */
static CUmodule load_many(void) {
    CUmodule module;
    char *text = malloc(LINE * (FUNCTIONS + 1)), *end = text;
    CHECK(text);
    end += sprintf(end, ".version 6.4\n.target sm_75\n.address_size 64\n");
    for (int i = 0; i < FUNCTIONS; i++) end += sprintf(end, ".visible .entry f%d() { ret; }\n", i);
    DO(cuModuleLoadData, &module, text);
    free(text);
    return module;
}

static void functions(CUstream *streams) {
    static CUfunction all[FUNCTIONS];
    __typeof__(&cuLaunchKernel) launch_one = look_up("cuLaunchKernel");
    CUmodule module = load_many();
    char name[LINE];
    for (int i = 0; i < FUNCTIONS; i++) {
        sprintf(name, "f%d", i);
        DO(cuModuleGetFunction, &all[i], module, name);
    }
    for (unsigned i = 0;; i++) {
        CHECK_IS(launch_one(all[i % FUNCTIONS], blocks, 1, 1, 1024, 1, 1, 0, streams[0], NULL, NULL),
                 CUDA_SUCCESS);
        if (i % BETWEEN_WAITS == 0) DO(cuStreamSynchronize, streams[0]);
    }
}

int main(int count, char **arguments) {
    CUstream streams[WORKERS];
    CHECK(count > 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* load code with its module, since no agent asks NVML here */
    open_card();
    blocks = 2 * (unsigned)multiprocessors; /* a full wave of blocks of that many threads */
    for (int i = 0; i < WORKERS; i++) streams[i] = new_stream();
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    if (!strcmp(arguments[1], "short_lived")) short_lived(streams);
    if (!strcmp(arguments[1], "workers")) workers(streams);
    if (!strcmp(arguments[1], "functions")) functions(streams);
    return 1;
}
