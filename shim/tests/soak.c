/*
 * Random work over every way to take memory, on whatever driver is there: `soak SEED OPERATIONS
 * THREADS [WAY]`, with WAY only that one. Somebody else looks whether the card ever holds more than the limit. What is refused is
 * refused; every other error ends the program.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cuda_api.h"

#define MIB ((uint64_t)1 << 20)
#define PAGE (2 * MIB)
#define OBJECTS 12

static void *driver;

#define CALL(symbol, ...) ((__typeof__(&symbol))look_up(#symbol))(__VA_ARGS__)

/* Not hooked, so not declared with the rest. */
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                             CUdeviceptr wish, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes);
CUresult cuCtxSetCurrent(CUcontext context);

static void *look_up(const char *symbol) {
    void *function = dlsym(driver, symbol);
    if (!function) fprintf(stderr, "no %s\n", symbol);
    CHECK(function);
    return function;
}

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

enum kind { NOTHING, POINTER, ASYNC, HANDLE, MAPPED, ARRAY, MIPMAP, CONTEXT, KINDS };

struct object {
    enum kind kind;
    uint64_t handle, address, bytes;
};

static CUcontext primary;
static int only = -1;

/* True when it was granted; a refusal is fine. */
static bool granted(CUresult result) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
    CHECK_IS(result, CUDA_SUCCESS);
    return true;
}

static void map(struct object *object) {
    CHECK_IS(CALL(cuMemAddressReserve, &object->address, object->bytes, 0, 0, 0), CUDA_SUCCESS);
    CHECK_IS(CALL(cuMemMap, object->address, object->bytes, 0, object->handle, 0), CUDA_SUCCESS);
    CHECK_IS(CALL(cuMemRelease, object->handle), CUDA_SUCCESS);
    object->kind = MAPPED;
}

static void take_handle(struct object *object, uint64_t bytes, bool mapped) {
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    object->bytes = (bytes + PAGE - 1) & -PAGE;
    if (!granted(CALL(cuMemCreate, &object->handle, object->bytes, &prop, 0))) return;
    object->kind = HANDLE;
    if (mapped) map(object);
}

static void take_pointer(struct object *object, uint64_t bytes, unsigned how) {
    size_t pitch;
    CUresult result =
        how == 0   ? CALL(cuMemAlloc_v2, &object->address, bytes)
        : how == 1 ? CALL(cuMemAllocPitch_v2, &object->address, &pitch, 1000, bytes / 1024 + 1, 4)
        : how == 2 ? CALL(cuMemAllocManaged, &object->address, bytes, 1)
                   : CALL(cuMemAllocAsync, &object->address, bytes + MIB, NULL);
    if (granted(result)) object->kind = how == 3 ? ASYNC : POINTER;
}

static void take_array(struct object *object, uint64_t bytes, bool mipmapped) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {1024, bytes / 4096 + 1, 0, 0x20, 1, 0};
    if (mipmapped) {
        if (granted(CALL(cuMipmappedArrayCreate, (CUmipmappedArray *)&object->handle, &shape, 3)))
            object->kind = MIPMAP;
    } else if (granted(CALL(cuArray3DCreate_v2, (CUarray *)&object->handle, &shape))) {
        object->kind = ARRAY;
    }
}

static void take_context(struct object *object) {
    if (!granted(CALL(cuCtxCreate_v2, (CUcontext *)&object->handle, 0, 0))) return;
    CUcontext popped; /* it was made current */
    object->kind = CONTEXT;
    CHECK_IS(CALL(cuCtxPopCurrent_v2, &popped), CUDA_SUCCESS);
}

static void take(struct object *object, uint64_t *state) {
    uint64_t bytes = 1 + random_next(state) % (random_next(state) % 2 ? MIB : 100 * MIB);
    unsigned how = only >= 0 ? (unsigned)only : (unsigned)(random_next(state) % 20);
    if (how < 12) take_pointer(object, bytes, how % 4);
    else if (how < 15) take_handle(object, bytes, how == 12);
    else if (how < 19) take_array(object, bytes, how == 15);
    else take_context(object);
}

static void give(struct object *object, uint64_t *state) {
    CUresult result = CUDA_SUCCESS;
    bool wait = object->kind == ASYNC && random_next(state) % 2;
    switch (object->kind) {
        case POINTER: result = CALL(cuMemFree_v2, object->address); break;
        case ASYNC: result = CALL(cuMemFreeAsync, object->address, NULL); break;
        case HANDLE: result = CALL(cuMemRelease, object->handle); break;
        case MAPPED: result = CALL(cuMemUnmap, object->address, object->bytes);
            CHECK_IS(CALL(cuMemAddressFree, object->address, object->bytes), CUDA_SUCCESS); break;
        case ARRAY: result = CALL(cuArrayDestroy, (CUarray)object->handle); break;
        case MIPMAP: result = CALL(cuMipmappedArrayDestroy, (CUmipmappedArray)object->handle); break;
        case CONTEXT: result = CALL(cuCtxDestroy_v2, (CUcontext)object->handle); break;
        default: break;
    }
    CHECK_IS(result, CUDA_SUCCESS);
    if (wait) CHECK_IS(CALL(cuCtxSynchronize), CUDA_SUCCESS);
    object->kind = NOTHING;
}

static int operations;

static void *work(void *seed) {
    struct object objects[OBJECTS] = {0};
    uint64_t state = (uint64_t)(uintptr_t)seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    CHECK_IS(CALL(cuCtxSetCurrent, primary), CUDA_SUCCESS);
    for (int i = 0; i < operations; i++) {
        struct object *object = &objects[random_next(&state) % OBJECTS];
        if (object->kind) give(object, &state); else take(object, &state);
    }
    for (int i = 0; i < OBJECTS; i++)
        if (objects[i].kind) give(&objects[i], &state);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[8];
    CHECK(count > 3);
    int number = atoi(arguments[3]);
    operations = atoi(arguments[2]);
    if (count > 4) only = atoi(arguments[4]);
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CHECK(driver && number <= 8);
    CHECK_IS(CALL(cuInit, 0), CUDA_SUCCESS);
    if (!granted(CALL(cuDevicePrimaryCtxRetain, &primary, 0))) return 0;
    for (int i = 0; i < number; i++)
        CHECK(!pthread_create(&threads[i], NULL, work,
                              (void *)(uintptr_t)(strtoull(arguments[1], NULL, 10) * 8 + (unsigned)i)));
    for (int i = 0; i < number; i++) pthread_join(threads[i], NULL);
    CHECK_IS(CALL(cuCtxSetCurrent, primary), CUDA_SUCCESS);
    CHECK_IS(CALL(cuCtxSynchronize), CUDA_SUCCESS);
    return 0;
}
