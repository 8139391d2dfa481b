/*
 * `tenant FUNCTIONS`: a program that starts and grows on a card: it makes a context, loads modules,
 * uses FUNCTIONS functions, which drivers load at their first use, and then takes all the memory
 * that it can get.
 *     reads a line; prints "up" once it has used its functions; reads a line; takes all it can and
 *     prints "took BYTES"; reads a line, frees all of it and prints "freed"; and so on until the input ends
 * `tenant churn MIB SEED`: a neighbour, which takes and frees up to MIB at random moments. It
 * prints "up" once it does.
 */
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define MIB ((uint64_t)1 << 20)

enum { MOST = 4096, PER_MODULE = 20, CHURNED = 8 };

static const char image[4096] = "\177ELF"; /* larger than any header */
static CUdeviceptr held[MOST];
static unsigned count;

static void say(const char *what, uint64_t bytes) {
    printf("%s %llu\n", what, (unsigned long long)bytes);
    fflush(stdout);
}

static bool told(void) {
    int next = getchar();
    while (next != '\n' && next != EOF) next = getchar();
    return next == '\n';
}

static void start(void) {
    CUcontext context;
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &context, 0);
    DO(cuCtxSetCurrent, context);
}

static void use(CUmodule module, unsigned number) {
    char name[32];
    CUfunction function;
    snprintf(name, sizeof name, "f%u_us_1", number);
    DO(cuModuleGetFunction, &function, module, name);
    DO(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

static void use_many(unsigned functions) {
    CUmodule module = NULL;
    for (unsigned i = 0; i < functions; i++) {
        if (i % PER_MODULE == 0) DO(cuModuleLoadData, &module, image);
        use(module, i);
    }
    DO(cuCtxSynchronize, );
}

/* Takes memory down to the last page. Returns the bytes. */
static uint64_t take_all(void) {
    uint64_t taken = 0, bytes = 256 * MIB;
    while (bytes >= 2 * MIB && count < MOST)
        if (granted(CALL(cuMemAlloc_v2, &held[count], bytes))) taken += bytes, count++;
        else bytes /= 2;
    return taken;
}

static void free_all(void) {
    while (count) DO(cuMemFree_v2, held[--count]);
}

static void grow(unsigned functions) {
    CHECK(told());
    start();
    use_many(functions);
    say("up", functions);
    while (told()) {
        say("took", take_all());
        if (!told()) return;
        free_all();
        say("freed", 0);
    }
}

static uint64_t any(uint64_t below) {
    static uint64_t state;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % below;
}

static void churn(uint64_t most, unsigned long seed) {
    bool taken[CHURNED] = {false};
    start();
    for (unsigned long i = 0; i < seed; i++) any(2);
    say("up", 0);
    for (;;) {
        unsigned i = (unsigned)any(CHURNED);
        if (taken[i]) DO(cuMemFree_v2, held[i]);
        taken[i] = !taken[i] && granted(CALL(cuMemAlloc_v2, &held[i], (1 + any(most)) * MIB));
        if (!any(20)) usleep(100);
    }
}

int main(int words, char **word) {
    CHECK(words == 2 || words == 4);
    open_driver();
    if (words == 4) churn(strtoul(word[2], NULL, 10), strtoul(word[3], NULL, 10));
    grow((unsigned)strtoul(word[1], NULL, 10));
    return 0;
}
