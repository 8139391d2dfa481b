/*
 * `sleeper`: an owner that executes one command per line on its card, and prints the result ("ok" is 0)
 * and for how many ms the shim slept in it, on a clock of its own (clock.h). Commands:
 *     launch           a kernel of 1 us
 *     alloc MIB        memory, kept
 *     pool MIB         from the default pool
 *     array MIB        an array of bytes
 *     context          a second context
 *     copy             a byte from the card
 *     clear            a byte of the card, by a memset
 *     pause MS         prints nothing: once the shim has slept for so long in the next command, prints
 *                      "pausing", and goes on when it has read a line
 */
#include <string.h>

#include "clock.h"
#include "driver.h"

#define MIB ((size_t)1 << 20)
#define ROW 1024
#define BYTES_OF_ONE 1 /* CU_AD_FORMAT_UNSIGNED_INT8 */

static const char image[4096] = "\177ELF";
static CUfunction function;
static CUdeviceptr kept;
static uint64_t began, pause_at = UINT64_MAX;

static void start(void) {
    CUcontext context;
    CUmodule module;
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &context, 0);
    DO(cuCtxSetCurrent, context);
    DO(cuModuleLoadData, &module, image);
    DO(cuModuleGetFunction, &function, module, "us_1");
    DO(cuMemAlloc_v2, &kept, 1);
}

static CUresult launch(void) {
    return CALL(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

static CUresult array_of(size_t bytes) {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {ROW, bytes / ROW, BYTES_OF_ONE, 1};
    return CALL(cuArrayCreate_v2, &array, &shape);
}

static CUresult obey(const char *what, size_t bytes) {
    CUdeviceptr pointer;
    CUcontext context;
    char byte;
    if (!strcmp(what, "launch")) return launch();
    if (!strcmp(what, "copy")) return CALL(cuMemcpyDtoH_v2, &byte, kept, 1);
    if (!strcmp(what, "clear")) return CALL(cuMemsetD8Async, kept, 0, 1, NULL);
    if (!strcmp(what, "alloc")) return CALL(cuMemAlloc_v2, &pointer, bytes);
    if (!strcmp(what, "pool")) return CALL(cuMemAllocAsync, &pointer, bytes, NULL);
    if (!strcmp(what, "array")) return array_of(bytes);
    CHECK(!strcmp(what, "context"));
    return CALL(cuCtxCreate_v2, &context, 0, 0);
}

static void perhaps_pause(void) {
    if (clock_ns - began < pause_at) return;
    pause_at = UINT64_MAX;
    puts("pausing");
    fflush(stdout);
    CHECK_IS(getchar(), '\n');
}

static void execute(const char *what, unsigned number) {
    pass(MS); /* between two commands */
    began = clock_ns;
    CUresult result = obey(what, number * MIB);
    printf("%d %u\n", (int)result, (unsigned)((clock_ns - began) / MS));
}

int main(void) {
    char what[16];
    unsigned number;
    while_asleep = perhaps_pause;
    open_driver();
    start();
    for (puts("up"); fflush(stdout), scanf("%15s %u%*1[\n]", what, &number) == 2;)
        if (!strcmp(what, "pause")) pause_at = number * MS;
        else execute(what, number);
    return 0;
}
