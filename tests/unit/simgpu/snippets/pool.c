#include "snippet.h"

enum { THRESHOLD = 4, RESERVED = 5, RESERVED_HIGH = 6, USED = 7 };

static size_t figure(CUmemoryPool pool, int attribute) {
    uint64_t value;
    OK(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static CUmemoryPool new_pool(void) {
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

SNIPPET(what_is_freed_into_a_pool_goes_at_the_next_synchronisation) {
    CUdeviceptr pointer;
    CUmemoryPool pool;
    start();
    size_t before = used();
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&pointer, 100 * MIB, NULL));
    EQUAL(figure(pool, USED), 100 * MIB);
    OK(cuMemFreeAsync(pointer, NULL));
    EQUAL(figure(pool, USED), 0);
    EQUAL(figure(pool, RESERVED), 100 * MIB);
    EQUAL(used() - before, 100 * MIB);
    OK(cuStreamSynchronize(NULL));
    EQUAL(used(), before);
    EQUAL(figure(pool, RESERVED_HIGH), 100 * MIB);
}

SNIPPET(a_pool_reserves_what_the_card_keeps_for_it) {
    CUdeviceptr plain, pointers[3];
    CUmemoryPool pool;
    start();
    OK(cuMemAlloc_v2(&plain, 512)); /* a page that pools have no part in */
    size_t before = used();
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    for (int i = 0; i < 3; i++) OK(cuMemAllocAsync(&pointers[i], MIB - 512, NULL));
    EQUAL(used() - before, 4 * MIB);
    EQUAL(figure(pool, RESERVED), 4 * MIB);
    EQUAL(figure(pool, USED), 3 * (MIB - 512));
    for (int i = 0; i < 3; i++) OK(cuMemFreeAsync(pointers[i], NULL));
    OK(cuStreamSynchronize(NULL));
    EQUAL(figure(pool, RESERVED), 0);
    EQUAL(used(), before);
    OK(cuMemFree_v2(plain));
}

SNIPPET(a_pool_keeps_up_to_its_threshold_and_uses_it_again) {
    CUdeviceptr pointer, again;
    uint64_t threshold = GIB;
    start();
    CUmemoryPool pool = new_pool();
    OK(cuMemPoolSetAttribute(pool, THRESHOLD, &threshold));
    size_t before = used();
    OK(cuMemAllocFromPoolAsync(&pointer, 100 * MIB, pool, NULL));
    OK(cuMemFreeAsync(pointer, NULL));
    OK(cuStreamSynchronize(NULL));
    EQUAL(used() - before, 100 * MIB);
    OK(cuMemAllocFromPoolAsync(&again, 100 * MIB, pool, NULL));
    EQUAL(again, pointer);
    OK(cuMemFreeAsync(again, NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    EQUAL(used(), before);
}

SNIPPET(pool_memory_may_be_freed_by_cuMemFree) {
    CUdeviceptr pointer;
    start();
    size_t before = used();
    OK(cuMemAllocAsync(&pointer, 100 * MIB, NULL));
    OK(cuMemFree_v2(pointer));
    EQUAL(used(), before);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(pointer, NULL));
}

SNIPPET(a_destroyed_pool_goes_with_its_last_allocation) {
    CUdeviceptr pointer;
    start();
    size_t before = used();
    CUmemoryPool pool = new_pool();
    OK(cuMemAllocFromPoolAsync(&pointer, 100 * MIB, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    EQUAL(used() - before, 100 * MIB);
    OK(cuMemFreeAsync(pointer, NULL));
    EQUAL(used(), before);
}

SNIPPET(what_pools_keep_is_used_before_an_allocation_fails) {
    CUdeviceptr pointer, larger;
    uint64_t threshold = UINT64_MAX;
    start();
    CUmemoryPool pool = new_pool();
    OK(cuMemPoolSetAttribute(pool, THRESHOLD, &threshold));
    OK(cuMemAllocFromPoolAsync(&pointer, 9 * GIB, pool, NULL));
    OK(cuMemFreeAsync(pointer, NULL));
    OK(cuMemAllocFromPoolAsync(&larger, 10 * GIB, pool, NULL));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&pointer, 9 * GIB, pool, NULL));
}
