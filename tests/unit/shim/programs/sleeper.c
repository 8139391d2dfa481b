/*
 * `sleeper`: an owner that executes one command per line on its card, and prints the result:
 *     launch           a kernel of 1 us
 *     alloc MIB        memory, kept: "ok" or the driver's error
 *     pool MIB         from the default pool
 *     array MIB        an array of bytes
 *     context          a second context
 *     copy             a byte from the card
 *     clear            a byte of the card, by a memset
 */
#include <string.h>

#include "driver.h"

#define MIB ((size_t)1 << 20)
#define ROW 1024
#define BYTES_OF_ONE 1 /* CU_AD_FORMAT_UNSIGNED_INT8 */

static const char image[4096] = "\177ELF";
static CUfunction function;
static CUdeviceptr kept;

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

int main(void) {
    char what[16];
    unsigned mib;
    open_driver();
    start();
    for (puts("up"); fflush(stdout), scanf("%15s %u", what, &mib) == 2;)
        printf("%d\n", (int)obey(what, mib * MIB));
    return 0;
}
