#include "snippet.h"

SNIPPET(a_context_costs_memory) {
    OK(cuInit(0));
    CUcontext first, second;
    OK(cuCtxCreate_v2(&first, 0, 0));
    size_t one = used();
    OK(cuCtxCreate_v4(&second, NULL, 0, 0));
    EQUAL(one, 300 * MIB);
    EQUAL(used(), 2 * one);
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(first));
    EQUAL(used(), one);
}

SNIPPET(memory_is_taken_in_whole_pages_and_given_back) {
    CUdeviceptr pointer;
    start();
    size_t before = used();
    OK(cuMemAlloc_v2(&pointer, 3 * MIB));
    EQUAL(used() - before, 4 * MIB);
    OK(cuMemFree_v2(pointer));
    EQUAL(used(), before);
}

SNIPPET(entries_of_old_give_addresses_of_32_bits) {
    unsigned pointer, rows, pitch;
    int value = 42, back = 0;
    start();
    size_t before = used();
    OK(cuMemAlloc(&pointer, 3 * MIB));
    EQUAL(used(), before + 2 * PAGE);
    OK(cuMemAllocPitch(&rows, &pitch, 1000, 1024, 4));
    EQUAL(pitch, 1024);
    EQUAL(used(), before + 3 * PAGE);
    OK(cuMemcpyHtoD_v2(pointer + MIB, &value, sizeof value));
    OK(cuMemcpyDtoH_v2(&back, pointer + MIB, sizeof back));
    EQUAL(back, 42);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&pointer, 1u << 31));
    OK(cuMemFree(pointer));
    OK(cuMemFree_v2(rows));
    EQUAL(used(), before);
}

SNIPPET(small_allocations_share_a_page) {
    CUdeviceptr pointers[4096];
    start();
    size_t before = used();
    for (int i = 0; i < 4096; i++) OK(cuMemAlloc_v2(&pointers[i], 1));
    EQUAL(used() - before, PAGE);
    EXPECT(pointers[1] - pointers[0] == 512);
    for (int i = 0; i < 4096; i++) OK(cuMemFree_v2(pointers[i]));
    EQUAL(used(), before);
}

SNIPPET(out_of_memory_comes_at_the_last_page) {
    CUdeviceptr pointer, more;
    size_t left, total;
    start();
    OK(cuMemGetInfo_v2(&left, &total));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&pointer, left + 1));
    OK(cuMemAlloc_v2(&pointer, left));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&more, 1));
    OK(cuMemFree_v2(pointer));
    OK(cuMemAlloc_v2(&more, 1));
}

SNIPPET(a_context_needs_room_too) {
    CUdeviceptr pointer;
    CUcontext context;
    size_t left, total;
    start();
    OK(cuMemGetInfo_v2(&left, &total));
    OK(cuMemAlloc_v2(&pointer, left - 100 * MIB));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&context, 0, 0));
}

SNIPPET(a_context_for_which_the_stack_has_no_room_costs_nothing) {
    CUcontext context;
    start();
    for (int i = 1; i < 64; i++) OK(cuCtxPushCurrent_v2(start()));
    size_t before = used();
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&context, 0, 0));
    EQUAL(used(), before);
}

SNIPPET(absurd_sizes_are_refused) {
    CUdeviceptr pointer;
    size_t pitch;
    start();
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&pointer, SIZE_MAX));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&pointer, &pitch, SIZE_MAX / 2, 4, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&pointer, 0));
}

SNIPPET(rows_of_a_pitched_allocation_start_at_512) {
    CUdeviceptr pointer;
    size_t pitch;
    start();
    size_t before = used();
    OK(cuMemAllocPitch_v2(&pointer, &pitch, 513, 4096, 4));
    EQUAL(pitch, 1024);
    EQUAL(used() - before, 4 * MIB);
}

SNIPPET(managed_memory_may_exceed_the_card_and_gives_way) {
    CUdeviceptr managed, pointer;
    start();
    OK(cuMemAllocManaged(&managed, 40 * GIB, CU_MEM_ATTACH_GLOBAL));
    EQUAL(used(), 16 * GIB);
    OK(cuMemAlloc_v2(&pointer, 15 * GIB));
    OK(cuMemFree_v2(managed));
    EQUAL(used(), 15 * GIB + 300 * MIB);
}

SNIPPET(only_what_was_allocated_can_be_freed) {
    CUdeviceptr pointer;
    start();
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(pointer + 512));
    OK(cuMemFree_v2(pointer));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(pointer));
    OK(cuMemFree_v2(0));
}

SNIPPET(a_pointer_knows_its_allocation) {
    CUdeviceptr pointer, base;
    size_t bytes;
    int type, ordinal;
    start();
    OK(cuMemAlloc_v2(&pointer, 5000));
    OK(cuMemGetAddressRange_v2(&base, &bytes, pointer + 4999));
    EQUAL(base, pointer);
    EQUAL(bytes, 5000);
    OK(cuPointerGetAttribute(&type, 2, pointer));
    OK(cuPointerGetAttribute(&ordinal, 9, pointer + 1));
    EQUAL(type, CU_MEMORYTYPE_DEVICE);
    EQUAL(ordinal, 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, 2, (CUdeviceptr)(uintptr_t)&type));
}

SNIPPET(the_end_of_a_context_frees_what_is_in_it) {
    CUcontext context;
    CUdeviceptr pointer;
    start();
    size_t before = used();
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&pointer, GIB));
    OK(cuMemAllocAsync(&pointer, GIB, NULL));
    OK(cuModuleLoadData(&(CUmodule){0}, "\177ELF"));
    OK(cuCtxDestroy_v2(context));
    EQUAL(used(), before);
}

SNIPPET(bytes_come_back_as_they_went) {
    CUdeviceptr pointer, other;
    char text[32] = "over there and back again", back[32] = "";
    start();
    OK(cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(cuMemAlloc_v2(&other, 64));
    OK(cuMemcpyHtoD_v2(pointer + 50 * MIB, text, sizeof text));
    OK(cuMemcpy(other, pointer + 50 * MIB, sizeof text));
    OK(cuMemcpyDtoH_v2(back, other, sizeof back));
    EXPECT(strcmp(text, back) == 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(pointer + 100 * MIB - 1, text, 2));
}

SNIPPET(a_batch_copies_all_of_it) {
    CUdeviceptr pointer, to[2], from[2];
    char text[2][8] = {"there", "back"}, back[8];
    size_t sizes[] = {8, 4}, failed;
    CUstream stream;
    start();
    OK(cuMemAlloc_v2(&pointer, 64));
    OK(cuStreamCreate(&stream, 1));
    for (int i = 0; i < 2; i++) {
        to[i] = pointer + 16 * i;
        from[i] = (CUdeviceptr)(uintptr_t)text[i];
    }
    OK(cuMemcpyBatchAsync(to, from, sizes, 2, NULL, NULL, 0, &failed, stream));
    OK(cuMemcpyBatchAsync_v2_ptsz(to, from, sizes, 1, NULL, NULL, 0, NULL));
    OK(cuMemcpyWithAttributesAsync(pointer + 20, pointer, 4, NULL, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(back, pointer + 16, 8));
    EXPECT(memcmp(back, "backther", 8) == 0);
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemcpyBatchAsync(to, from, sizes, 2, NULL, NULL, 0, &failed, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemcpyBatchAsync(to, from, sizes, 0, NULL, NULL, 0, &failed, stream));
}

SNIPPET(memory_is_filled_with_patterns) {
    CUdeviceptr pointer;
    unsigned short rows[2][4];
    start();
    OK(cuMemAlloc_v2(&pointer, 16));
    OK(cuMemsetD8_v2(pointer, 0x11, 16));
    OK(cuMemsetD2D16_v2(pointer, 8, 0xabcd, 3, 2));
    OK(cuMemcpyDtoH_v2(rows, pointer, 16));
    EQUAL(rows[1][2], 0xabcd);
    EQUAL(rows[1][3], 0x1111);
}

SNIPPET(rectangles_are_copied_by_their_pitches) {
    CUdeviceptr pointer;
    size_t pitch;
    char from[3][5] = {"abcd", "efgh", "ijkl"}, to[3][5] = {{0}};
    start();
    OK(cuMemAllocPitch_v2(&pointer, &pitch, 4, 3, 4));
    CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = 5,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = pointer,
                        .dstPitch = pitch, .WidthInBytes = 4, .Height = 3};
    CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = pointer,
                          .srcPitch = pitch, .srcXInBytes = 1, .srcY = 1,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = to, .dstPitch = 5,
                          .WidthInBytes = 3, .Height = 2};
    OK(cuMemcpy2D_v2(&up));
    OK(cuMemcpy2D_v2(&down));
    EXPECT(strcmp(to[0], "fgh") == 0 && strcmp(to[1], "jkl") == 0);
}
