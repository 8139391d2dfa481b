/* Memory that other objects keep: multicast objects, sparse arrays, and that of other interfaces. */
#include <sys/mman.h>
#include <unistd.h>

#include "snippet.h"

static CUmemGenericAllocationHandle create(size_t bytes) {
    const CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, bytes, &on_card, 0));
    return handle;
}

static CUmemGenericAllocationHandle multicast(size_t bytes) {
    const CUmulticastObjectProp props = {.numDevices = 1, .size = bytes};
    CUmemGenericAllocationHandle handle;
    OK(cuMulticastCreate(&handle, &props));
    return handle;
}

SNIPPET(a_multicast_object_keeps_what_is_bound_to_it) {
    start();
    size_t before = used();
    CUmemGenericAllocationHandle object = multicast(2 * PAGE), memory = create(PAGE);
    EQUAL(used(), before + PAGE);
    OK(cuMulticastAddDevice(object, 0));
    OK(cuMulticastBindMem(object, PAGE, memory, 0, PAGE, 0));
    OK(cuMemRelease(memory));
    EQUAL(used(), before + PAGE);
    OK(cuMemRelease(object));
    EQUAL(used(), before);
}

SNIPPET(what_is_unbound_is_not_kept) {
    CUdeviceptr pointer;
    start();
    size_t before = used();
    CUmemGenericAllocationHandle object = multicast(PAGE), memory = create(PAGE);
    OK(cuMulticastAddDevice(object, 0));
    OK(cuMemAddressReserve(&pointer, PAGE, 0, 0, 0));
    OK(cuMemMap(pointer, PAGE, 0, memory, 0));
    OK(cuMulticastBindAddr(object, 0, pointer, PAGE, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, memory, 0, PAGE, 0));
    OK(cuMemUnmap(pointer, PAGE));
    OK(cuMemRelease(memory));
    EQUAL(used(), before + PAGE);
    OK(cuMulticastUnbind(object, 0, 0, PAGE));
    EQUAL(used(), before);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind(object, 0, 0, PAGE));
}

SNIPPET(nothing_is_bound_before_all_cards_have_joined) {
    start();
    CUmemGenericAllocationHandle object = multicast(PAGE), memory = create(PAGE);
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cuMulticastBindMem(object, 0, memory, 0, PAGE, 0));
    OK(cuMulticastAddDevice(object, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(object, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, memory, 0, 2 * PAGE, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, object, 0, PAGE, 0));
    OK(cuMulticastBindMem(object, 0, memory, 0, PAGE, 0));
}

static void change_tile(CUarray array, int operation, CUmemGenericAllocationHandle memory,
                        unsigned x) {
    CUarrayMapInfo tile = {.resource = array,
                           .subresource.sparseLevel = {0, 0, x, 0, 0, 128, 128, 1},
                           .memOperationType = operation,
                           .memHandle = memory,
                           .deviceBitMask = 1};
    OK(cuMemMapArrayAsync(&tile, 1, NULL));
}

SNIPPET(a_sparse_array_has_the_memory_that_is_mapped_into_it) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, 0x20, 1, CUDA_ARRAY3D_SPARSE};
    CUarray array;
    start();
    size_t before = used();
    OK(cuArray3DCreate_v2(&array, &shape));
    EQUAL(used(), before);
    CUmemGenericAllocationHandle one = create(PAGE), other = create(PAGE);
    change_tile(array, CU_MEM_OPERATION_TYPE_MAP, one, 0);
    change_tile(array, CU_MEM_OPERATION_TYPE_MAP, other, 128);
    OK(cuMemRelease(one));
    OK(cuMemRelease(other));
    EQUAL(used(), before + 2 * PAGE);
    change_tile(array, CU_MEM_OPERATION_TYPE_UNMAP, 0, 128);
    EQUAL(used(), before + PAGE);
    OK(cuArrayDestroy(array));
    EQUAL(used(), before);
}

SNIPPET(a_tile_gives_way_to_the_next) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, 0x20, 1, CUDA_ARRAY3D_SPARSE};
    CUmipmappedArray array;
    start();
    size_t before = used();
    OK(cuMipmappedArrayCreate(&array, &shape, 2));
    for (int i = 0; i < 3; i++) {
        CUarrayMapInfo tile = {.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
                               .resource = array,
                               .subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL,
                               .subresource.miptail = {0, 0, PAGE},
                               .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                               .memHandle = create(PAGE),
                               .deviceBitMask = 1};
        OK(cuMemMapArrayAsync(&tile, 1, NULL));
        OK(cuMemRelease(tile.memHandle));
    }
    EQUAL(used(), before + PAGE);
    OK(cuMipmappedArrayDestroy(array));
    EQUAL(used(), before);
}

/* What another interface allocated, which has no handle of it any more. */
static CUexternalMemory import(size_t bytes) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = 1, .size = bytes};
    CUexternalMemory external;
    from.handle.fd = memfd_create("elsewhere", 0);
    EXPECT(from.handle.fd >= 0 && ftruncate(from.handle.fd, (off_t)bytes) == 0);
    OK(cuImportExternalMemory(&external, &from));
    return external;
}

SNIPPET(external_memory_is_there_until_all_of_it_is_gone) {
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC shape = {.offset = PAGE, .size = PAGE};
    CUdeviceptr pointer;
    start();
    size_t before = used();
    CUexternalMemory external = import(3 * PAGE);
    EQUAL(used(), before + 3 * PAGE);
    OK(cuExternalMemoryGetMappedBuffer(&pointer, external, &shape));
    EQUAL(used(), before + 3 * PAGE);
    OK(cuDestroyExternalMemory(external));
    EQUAL(used(), before + 3 * PAGE);
    OK(cuMemFree_v2(pointer));
    EQUAL(used(), before);
}

SNIPPET(buffers_of_external_memory_are_the_same_memory) {
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC all = {.size = 2 * PAGE},
                                           half = {.offset = PAGE, .size = PAGE};
    CUdeviceptr whole, part;
    int value = 42, back = 0;
    start();
    CUexternalMemory external = import(2 * PAGE);
    OK(cuExternalMemoryGetMappedBuffer(&whole, external, &all));
    OK(cuExternalMemoryGetMappedBuffer(&part, external, &half));
    OK(cuMemcpyHtoD_v2(part + 8, &value, sizeof value));
    OK(cuMemcpyDtoH_v2(&back, whole + PAGE + 8, sizeof back));
    EQUAL(back, 42);
    OK(cuMemFree_v2(part));
    OK(cuMemFree_v2(whole));
    OK(cuDestroyExternalMemory(external));
}

SNIPPET(a_mipmapped_array_of_external_memory_is_the_same_memory) {
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC all = {.size = 3 * PAGE};
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC shape = {
        .offset = PAGE, .arrayDesc = {1024, 256, 0, 0x20, 1, 0}, .numLevels = 2};
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcPitch = sizeof(int),
                          .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstXInBytes = 8,
                          .WidthInBytes = sizeof(int), .Height = 1};
    CUmipmappedArray array;
    CUdeviceptr whole;
    int value = 42, back = 0;
    start();
    size_t before = used();
    CUexternalMemory external = import(3 * PAGE);
    OK(cuExternalMemoryGetMappedBuffer(&whole, external, &all));
    OK(cuExternalMemoryGetMappedMipmappedArray(&array, external, &shape));
    OK(cuMipmappedArrayGetLevel(&copy.dstArray, array, 0));
    copy.srcHost = &value;
    OK(cuMemcpy2D_v2(&copy));
    OK(cuMemcpyDtoH_v2(&back, whole + PAGE + 8, sizeof back));
    EQUAL(back, 42);
    OK(cuMemFree_v2(whole));
    OK(cuDestroyExternalMemory(external));
    EQUAL(used(), before + 3 * PAGE);
    OK(cuMipmappedArrayDestroy(array));
    EQUAL(used(), before);
}

SNIPPET(an_array_has_to_fit_into_external_memory) {
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC shape = {
        .arrayDesc = {1024, 1024, 0, 0x20, 1, 0}, .numLevels = 1};
    CUmipmappedArray array;
    start();
    CUexternalMemory external = import(2 * PAGE);
    OK(cuExternalMemoryGetMappedMipmappedArray(&array, external, &shape));
    shape.numLevels = 2;
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuExternalMemoryGetMappedMipmappedArray(&array, external, &shape));
    OK(cuDestroyExternalMemory(external));
    GIVES(CUDA_ERROR_INVALID_HANDLE,
          cuExternalMemoryGetMappedMipmappedArray(&array, external, &shape));
}

SNIPPET(external_memory_goes_with_its_context) {
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC shape = {.size = PAGE};
    CUcontext context, popped;
    CUdeviceptr pointer;
    start();
    size_t before = used();
    OK(cuCtxCreate_v2(&context, 0, 0));
    CUexternalMemory external = import(PAGE);
    OK(cuExternalMemoryGetMappedBuffer(&pointer, external, &shape));
    OK(cuDestroyExternalMemory(external));
    import(3 * PAGE);
    OK(cuCtxDestroy_v2(context));
    EQUAL(used(), before);
    OK(cuCtxCreate_v2(&context, 0, 0));
    external = import(PAGE);
    OK(cuCtxPopCurrent_v2(&popped));
    OK(cuExternalMemoryGetMappedBuffer(&pointer, external, &shape));
    OK(cuCtxDestroy_v2(context));
    EQUAL(used(), before + PAGE);
    OK(cuMemFree_v2(pointer));
    EQUAL(used(), before);
}

SNIPPET(external_memory_has_to_find_room) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = 1, .size = 16 * GIB};
    CUexternalMemory external;
    start();
    from.handle.fd = memfd_create("elsewhere", 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&external, &from));
    EXPECT(ftruncate(from.handle.fd, (off_t)from.size) == 0);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuImportExternalMemory(&external, &from));
}
