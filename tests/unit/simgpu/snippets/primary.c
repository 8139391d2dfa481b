/* A device's primary context, as NVIDIA's runtime uses it: by its handle, whether it is open or not. */
#include "snippet.h"

/* The driver's private tables that tell of it. */
static const CUuuid RUNTIME = {"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9"},
                    STORAGE = {"\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93"};

typedef void (*gone_fn)(CUcontext context, void *key, void *value);
struct storage {
    CUresult (*put)(CUcontext context, void *key, void *value, gone_fn gone);
    CUresult (*remove)(CUcontext context, void *key);
    CUresult (*get)(void **value, CUcontext context, void *key);
};

static const struct storage *storage(void) {
    const void *table;
    OK(cuGetExportTable(&table, &STORAGE));
    return table;
}

static CUcontext primary(CUdevice device) {
    struct {
        const void *bytes, *other;
        CUresult (*get_primary)(CUcontext *context, CUdevice device);
    } const *table;
    CUcontext context;
    OK(cuGetExportTable((const void **)&table, &RUNTIME));
    OK(table->get_primary(&context, device));
    return context;
}

SNIPPET(the_handle_of_a_primary_context_takes_no_memory) {
    CUcontext context, now;
    CUdeviceptr pointer;
    CUdevice device;
    int active;
    OK(cuInit(0));
    context = primary(1);
    OK(cuDevicePrimaryCtxGetState(1, &(unsigned){0}, &active));
    EQUAL(active, 0);
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetDevice(&device));
    EQUAL(device, 1);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&pointer, 1));
    OK(cuDevicePrimaryCtxRetain(&now, 1));
    EXPECT(now == context);
    OK(cuMemAlloc_v2(&pointer, 1));
}

SNIPPET(a_primary_context_begins_again_under_its_handle) {
    CUcontext context = start(), again;
    CUstream stream, legacy;
    CUdeviceptr pointer;
    size_t before = used();
    for (int i = 0; i < 3; i++) {
        OK(cuMemAlloc_v2(&pointer, GIB));
        OK(cuStreamCreate(&stream, 0));
        OK(cuMemsetD8Async(pointer, 0, 1, (CUstream)2)); /* the thread's default stream */
        OK(cuDevicePrimaryCtxReset_v2(0));
        GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamCreate(&legacy, 0));
        OK(cuDevicePrimaryCtxRetain(&again, 0));
        EXPECT(again == context);
        EQUAL(used(), before);
    }
}

SNIPPET(variables_of_a_binary_are_there_when_asked_for) {
    CUmodule module;
    CUdeviceptr one, same, other;
    size_t bytes;
    start();
    size_t before = used();
    OK(cuModuleLoadData(&module, "\177ELF"));
    OK(cuModuleGetGlobal_v2(&one, &bytes, module, "one"));
    OK(cuModuleGetGlobal_v2(&same, NULL, module, "one"));
    OK(cuModuleGetGlobal_v2(&other, NULL, module, "other"));
    EXPECT(one == same && one != other);
    OK(cuMemsetD8_v2(one, 1, bytes));
    OK(cuModuleUnload(module));
    EQUAL(used(), before);
    OK(cuModuleLoadData(&module, "//\n.visible .entry spin_us(\n"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&one, &bytes, module, "one"));
}

static int gone;

static void count_gone(CUcontext context, void *key, void *value) {
    EXPECT(context && key && value);
    gone++;
}

SNIPPET(a_runtime_may_keep_things_with_a_context) {
    int keys[2], values[2];
    void *found;
    CUcontext context = start();
    const struct storage *of = storage();
    GIVES(CUDA_ERROR_INVALID_HANDLE, of->get(&found, context, &keys[0]));
    OK(of->put(context, &keys[0], &values[0], count_gone));
    OK(of->put(NULL, &keys[1], &values[0], count_gone));
    OK(of->put(NULL, &keys[1], &values[1], count_gone));
    OK(of->get(&found, context, &keys[1]));
    EXPECT(found == &values[1]);
    OK(of->remove(context, &keys[1]));
    GIVES(CUDA_ERROR_INVALID_HANDLE, of->get(&found, NULL, &keys[1]));
    OK(cuDevicePrimaryCtxReset_v2(0));
    EQUAL(gone, 1);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, of->get(&found, context, &keys[0]));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, of->get(&found, context, &keys[0]));
}
