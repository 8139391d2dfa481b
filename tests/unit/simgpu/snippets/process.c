/* Contexts, modules, names, forks; and snippets that other processes are needed for. */
#include <sys/wait.h>
#include <unistd.h>

#include "snippet.h"

SNIPPET(nothing_works_before_cuInit) {
    int count;
    CUcontext context;
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxCreate_v2(&context, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate_v2(&context, 0, 99));
    OK(cuCtxCreate_v2(&context, 0, 0));
}

SNIPPET(a_primary_context_lives_while_it_is_retained) {
    CUcontext first, second;
    CUdeviceptr pointer;
    int active;
    first = start();
    OK(cuDevicePrimaryCtxRetain(&second, 0));
    EXPECT(first == second);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &(unsigned){0}, &active));
    EQUAL(active, 1);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &(unsigned){0}, &active));
    EQUAL(active, 0);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&pointer, 1));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
}

SNIPPET(contexts_are_stacked) {
    CUcontext first, second, now;
    OK(cuInit(0));
    OK(cuCtxCreate(&first, 0, 0));
    OK(cuCtxCreate_v3(&second, NULL, 0, 0, 0));
    OK(cuCtxPopCurrent_v2(&now));
    EXPECT(now == second);
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == first);
    OK(cuCtxPushCurrent_v2(second));
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == first);
}

SNIPPET(a_ptx_image_has_the_kernels_that_it_names) {
    CUmodule module;
    CUfunction function;
    start();
    OK(cuModuleLoadData(&module, "//\n.version 8.0\n.visible .entry spin_us(\n"));
    OK(cuModuleGetFunction(&function, module, "spin_us"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "spin"));
    OK(cuModuleUnload(module));
}

SNIPPET(a_library_gives_kernels_that_can_be_launched) {
    CUlibrary library;
    CUkernel found;
    CUfunction function;
    start();
    OK(cuLibraryLoadData(&library, "\177ELF", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&found, library, "work_us_10"));
    OK(cuKernelGetFunction(&function, found));
    launch(function, NULL);
    OK(cuCtxSynchronize());
    OK(cuLibraryUnload(library));
}

SNIPPET(errors_have_names) {
    const char *text;
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT(strcmp(text, "out of memory") == 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(12345, &text));
}

static void *entry(const char *name, int version, uint64_t flags, int wanted) {
    void *address;
    int status;
    OK(cuGetProcAddress_v2(name, &address, version, flags, &status));
    EQUAL(status, wanted);
    return address;
}

SNIPPET(an_entry_follows_from_name_version_and_stream_flag) {
    CUresult cuMemAlloc(unsigned *pointer, unsigned bytes);
    start();
    EXPECT(entry("cuMemAlloc", 3020, 0, 0) == (void *)cuMemAlloc_v2);
    EXPECT(entry("cuMemAlloc", 12000, 0, 0) == (void *)cuMemAlloc_v2);
    EXPECT(entry("cuMemAlloc", 3010, 0, 0) == (void *)cuMemAlloc);
    EXPECT(entry("cuCtxCreate", 11040, 0, 0) == (void *)cuCtxCreate_v3);
    EXPECT(entry("cuLaunchKernel", 12000, 1, 0) == (void *)cuLaunchKernel);
    EXPECT(entry("cuLaunchKernel", 12000, 2, 0) == (void *)cuLaunchKernel_ptsz);
    EXPECT(entry("cuMemAlloc", 12000, 2, 0) == (void *)cuMemAlloc_v2);
    EXPECT(entry("cuGetProcAddress", 11030, 0, 0) == (void *)cuGetProcAddress);
    EXPECT(entry("cuGetProcAddress", 12000, 0, 0) == (void *)cuGetProcAddress_v2);
    EXPECT(entry("cuMemAllocAsync", 11010, 0, 2) == NULL);
    EXPECT(entry("cuNoSuchThing", 12000, 0, 1) == NULL);
    GIVES(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchThing", &(void *){0}, 12000, 0));
}

SNIPPET(what_is_not_simulated_says_so) {
    const void *table;
    start();
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuTexObjectDestroy(0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetExportTable(&table, &(CUuuid){{0}}));
    EXPECT(table == NULL);
}

SNIPPET(a_forked_child_has_no_driver) {
    CUdeviceptr pointer;
    int status;
    start();
    OK(cuMemAlloc_v2(&pointer, GIB));
    size_t before = used();
    pid_t child = fork();
    if (!child) {
        GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemFree_v2(pointer));
        GIVES(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
        exit(0);
    }
    waitpid(child, &status, 0);
    EQUAL(status, 0);
    EQUAL(used(), before);
    OK(cuMemFree_v2(pointer));
}

SNIPPET(a_child_forked_before_cuInit_is_a_process_of_its_own) {
    int status;
    pid_t child = fork();
    CUdeviceptr pointer;
    start();
    OK(cuMemAlloc_v2(&pointer, MIB));
    if (!child) exit(0);
    waitpid(child, &status, 0);
    EQUAL(status, 0);
}

/* The cards this process sees, by UUID. */
SNIPPET(cards) {
    int count, device;
    CUuuid uuid;
    CUresult result = cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE) {
        puts("none");
        return;
    }
    OK(result);
    OK(cuDeviceGetCount(&count));
    for (device = 0; device < count; device++) {
        OK(cuDeviceGetUuid(&uuid, device));
        for (int i = 0; i < 16; i++) printf("%02x", (unsigned char)uuid.bytes[i]);
        putchar('\n');
    }
}

/* Allocates MiB, says the result, and holds it until standard input ends. */
SNIPPET(hold) {
    CUdeviceptr pointer;
    const char *name;
    start();
    cuGetErrorName(cuMemAlloc_v2(&pointer, (size_t)atol(arguments[0]) * MIB), &name);
    puts(name);
    fflush(stdout);
    while (getchar() != EOF) continue;
}

/* Takes and gives back memory for ever: to be killed. */
SNIPPET(churn) {
    CUdeviceptr pointer;
    start();
    puts("churning");
    fflush(stdout);
    for (;;) {
        if (cuMemAlloc_v2(&pointer, 6 * GIB)) continue;
        OK(cuMemFree_v2(pointer));
    }
}

/* A child opens what its parent has allocated. */
static CUdeviceptr share(void (*use)(CUipcMemHandle handle)) {
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    int way[2], status;
    EXPECT(pipe(way) == 0);
    pid_t child = fork();
    if (!child) {
        close(way[1]);
        start();
        EXPECT(read(way[0], &handle, sizeof handle) == sizeof handle);
        use(handle);
        exit(0);
    }
    start();
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    OK(cuMemcpyHtoD_v2(pointer + 3 * MIB, "shared", 7));
    OK(cuIpcGetMemHandle(&handle, pointer));
    EXPECT(write(way[1], &handle, sizeof handle) == sizeof handle);
    EXPECT(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    return pointer;
}

static void read_and_answer(CUipcMemHandle handle) {
    CUdeviceptr pointer;
    char text[16];
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    OK(cuMemcpyDtoH_v2(text, pointer + 3 * MIB, sizeof text));
    EXPECT(strcmp(text, "shared") == 0);
    OK(cuMemcpyHtoD_v2(pointer, "answer", 7));
    OK(cuIpcCloseMemHandle(pointer));
}

SNIPPET(memory_of_another_process_can_be_opened) {
    char text[16];
    CUdeviceptr pointer = share(read_and_answer);
    OK(cuMemcpyDtoH_v2(text, pointer, sizeof text));
    EXPECT(strcmp(text, "answer") == 0);
}

static void open_for_nothing(CUipcMemHandle handle) {
    CUdeviceptr pointer;
    size_t before = used();
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    EQUAL(used(), before);
}

SNIPPET(opened_memory_is_there_once) {
    share(open_for_nothing);
}
