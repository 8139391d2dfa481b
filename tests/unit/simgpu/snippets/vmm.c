#include "snippet.h"

static const CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc read_write = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                           CU_MEM_ACCESS_READWRITE};

SNIPPET(mapped_memory_is_counted_until_handle_and_mapping_are_gone) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer;
    start();
    size_t before = used();
    OK(cuMemAddressReserve(&pointer, GIB, 0, 0, 0));
    EQUAL(used(), before);
    OK(cuMemCreate(&handle, 10 * MIB, &on_card, 0));
    EQUAL(used() - before, 10 * MIB);
    OK(cuMemMap(pointer, 10 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    EQUAL(used() - before, 10 * MIB);
    OK(cuMemUnmap(pointer, 10 * MIB));
    EQUAL(used(), before);
    OK(cuMemAddressFree(pointer, GIB));
}

SNIPPET(a_retained_handle_keeps_the_memory) {
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr pointer;
    start();
    size_t before = used();
    OK(cuMemAddressReserve(&pointer, PAGE, 0, 0, 0));
    OK(cuMemCreate(&handle, PAGE, &on_card, 0));
    OK(cuMemMap(pointer, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(pointer + 5)));
    OK(cuMemUnmap(pointer, PAGE));
    EQUAL(used() - before, PAGE);
    OK(cuMemRelease(again));
    EQUAL(used(), before);
}

SNIPPET(pointers_to_mapped_memory_are_known) {
    enum { MEMORY_TYPE = 2, DEVICE_POINTER = 3, ORDINAL = 9, BASE = 11, LOCALITY = 22 };
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer, shown;
    int type, ordinal, locality;
    start();
    OK(cuMemAddressReserve(&pointer, 2 * PAGE, 0, 0, 0));
    OK(cuMemCreate(&handle, PAGE, &on_card, 0));
    OK(cuMemMap(pointer, PAGE, 0, handle, 0));
    OK(cuPointerGetAttribute(&type, MEMORY_TYPE, pointer + 5));
    EQUAL(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&shown, DEVICE_POINTER, pointer + 5));
    EQUAL(shown, pointer + 5);
    OK(cuPointerGetAttribute(&shown, BASE, pointer + 5));
    EQUAL(shown, pointer);
    OK(cuPointerGetAttribute(&ordinal, ORDINAL, pointer));
    EQUAL(ordinal, 0);
    OK(cuPointerGetAttribute(&locality, LOCALITY, pointer));
    EQUAL(locality, -1);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, MEMORY_TYPE, pointer + PAGE));
}

SNIPPET(one_handle_at_two_addresses_is_the_same_memory) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer;
    int value = 42, back = 0;
    start();
    OK(cuMemAddressReserve(&pointer, 2 * PAGE, 0, 0, 0));
    OK(cuMemCreate(&handle, PAGE, &on_card, 0));
    OK(cuMemMap(pointer, PAGE, 0, handle, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(pointer, &value, 4));
    OK(cuMemMap(pointer + PAGE, PAGE, 0, handle, 0));
    GIVES(CUDA_ERROR_ALREADY_MAPPED, cuMemMap(pointer, PAGE, 0, handle, 0));
    OK(cuMemSetAccess(pointer, 2 * PAGE, &read_write, 1));
    OK(cuMemcpyHtoD_v2(pointer + 8, &value, 4));
    OK(cuMemcpyDtoH_v2(&back, pointer + PAGE + 8, 4));
    EQUAL(back, 42);
}

SNIPPET(physical_memory_runs_out) {
    CUmemGenericAllocationHandle handle;
    start();
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, 16 * GIB, &on_card, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, PAGE + 1, &on_card, 0));
}

SNIPPET(arrays_take_memory) {
    CUarray array;
    CUmipmappedArray levels;
    CUDA_ARRAY_DESCRIPTOR plane = {1024, 1024, 0x20, 4};
    CUDA_ARRAY3D_DESCRIPTOR cube = {256, 256, 256, 0x20, 1, 0};
    start();
    size_t before = used();
    OK(cuArrayCreate_v2(&array, &plane));
    EQUAL(used() - before, 16 * MIB);
    OK(cuMipmappedArrayCreate(&levels, &cube, 2));
    EQUAL(used() - before, (16 + 64 + 8) * MIB);
    OK(cuMipmappedArrayDestroy(levels));
    OK(cuArrayDestroy(array));
    EQUAL(used(), before);
    plane.Width = plane.Height = 65536;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuArrayCreate_v2(&array, &plane));
}

SNIPPET(arrays_of_old_take_memory) {
    CUarray plane, cube;
    CUDA_ARRAY_DESCRIPTOR_v1 flat = {1024, 1024, 0x20, 4};
    CUDA_ARRAY3D_DESCRIPTOR_v1 deep = {256, 256, 256, 0x20, 1, 0};
    start();
    size_t before = used();
    OK(cuArrayCreate(&plane, &flat));
    OK(cuArray3DCreate(&cube, &deep));
    EQUAL(used() - before, (16 + 64) * MIB);
    OK(cuArrayDestroy(plane));
    OK(cuArrayDestroy(cube));
    EQUAL(used(), before);
}
