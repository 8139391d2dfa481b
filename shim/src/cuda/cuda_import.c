/*
 * Memory that is imported from other APIs or processes. It is charged to the importing process,
 * since it exists as long as that process keeps it or anything mapped from it.
 */
#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/allocation.h"
#include "memory/imports.h"

static CUresult undo_external(uint64_t key) {
    return RELAXED(cuDestroyExternalMemory, 
        (CUexternalMemory)(uintptr_t)(key ^ alloc_key(ALLOC_EXTERNAL, NULL)));
}

static CUresult close_handle(uint64_t pointer) {
    return RELAXED(cuIpcCloseMemHandle, pointer);
}

static CUresult free_pointer(uint64_t pointer) {
    return RELAXED(cuMemFree_v2, pointer);
}

static CUresult destroy_array(uint64_t key) {
    return RELAXED(cuMipmappedArrayDestroy, 
        (CUmipmappedArray)(uintptr_t)(key ^ alloc_key(ALLOC_MIPMAP, NULL)));
}

/* Reserves the bytes on the card of `allocation` and makes them the charge of a new import. */
static CUresult reserve_import(struct allocation *allocation, uint64_t bytes) {
    CUresult result = allocation_reserve_located(allocation, bytes);
    if (result != CUDA_SUCCESS) return result;
    uint64_t number = imports_add(allocation->regions, allocation->alloc.card, allocation->alloc.bytes);
    if (!number) {
        allocation_cancel(allocation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->alloc.kind = ALLOC_EXTERNAL;
    allocation->alloc.import = number;
    return CUDA_SUCCESS;
}

static CUresult begin_import(struct allocation *allocation, uint64_t bytes) {
    CUresult result = allocation_locate(allocation);
    if (result != CUDA_SUCCESS || !allocation->regions) return result;
    return reserve_import(allocation, bytes);
}

EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *descriptor) {
    struct allocation allocation;
    CUresult result = begin_import(&allocation, descriptor ? descriptor->bytes : 0);
    if (result == CUDA_SUCCESS) result = REAL(cuImportExternalMemory)(memory, descriptor);
    return allocation_settle(&allocation, result, memory ? alloc_key(ALLOC_EXTERNAL, *memory) : 0,
                             undo_external);
}

EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct allocation allocation;
    uint64_t key = alloc_key(ALLOC_EXTERNAL, memory);
    allocation_lift(&allocation, memory ? key : 0);
    return allocation_finish_free(&allocation, REAL(cuDestroyExternalMemory)(memory), key);
}

/* Makes the allocation one more holder of the import of that key. Returns false if there is none. */
static bool join(struct allocation *allocation, uint64_t key) {
    uint64_t number = imports_join(allocation->regions, key);
    if (!number) return false;
    allocation->alloc.kind = ALLOC_EXTERNAL;
    allocation->alloc.import = number;
    return allocation->reserved = true;
}

/*
 * A mapping costs nothing, but keeps the import. Refuses to map from a handle that another thread
 * is destroying, since the mapping would not be counted.
 */
static CUresult begin_mapping(struct allocation *allocation, CUexternalMemory memory) {
    CUresult result = allocation_locate(allocation);
    if (result != CUDA_SUCCESS || !allocation->regions) return result;
    return join(allocation, alloc_key(ALLOC_EXTERNAL, memory)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                                const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *shape) {
    struct allocation allocation;
    CUresult result = begin_mapping(&allocation, memory);
    if (result == CUDA_SUCCESS)
        result = REAL(cuExternalMemoryGetMappedBuffer)(pointer, memory, shape);
    return allocation_settle(&allocation, result, pointer ? *pointer : 0, free_pointer);
}

EXPORT CUresult cuExternalMemoryGetMappedMipmappedArray(
    CUmipmappedArray *array, CUexternalMemory memory,
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *shape) {
    struct allocation allocation;
    CUresult result = begin_mapping(&allocation, memory);
    if (result == CUDA_SUCCESS)
        result = REAL(cuExternalMemoryGetMappedMipmappedArray)(array, memory, shape);
    return allocation_settle(&allocation, result, array ? alloc_key(ALLOC_MIPMAP, *array) : 0,
                             destroy_array);
}

/*
 * The card of memory that was opened: a process may open memory of another card than the one it works
 * on, as those of a model that is spread over several cards do. `here` if the driver does not report it.
 */
static int card_of_opened(struct regions *regions, CUdeviceptr pointer, int here) {
    CUdevice device = -1;
    CUresult result = RELAXED(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    int card = result == CUDA_SUCCESS ? cards_of_device(regions, device) : CARD_NONE;
    return card == CARD_NONE ? here : card;
}

/* A handle that is open already gives the same pointer again, whose memory is charged once. */
static CUresult reserve_opened(struct allocation *allocation, CUdeviceptr pointer, uint64_t bytes) {
    CUresult result = allocation_locate(allocation);
    if (result != CUDA_SUCCESS || !allocation->regions) return result;
    if (join(allocation, pointer)) return CUDA_SUCCESS;
    allocation->alloc.card = card_of_opened(allocation->regions, pointer, allocation->alloc.card);
    return reserve_import(allocation, bytes);
}

/*
 * Charges memory that was opened, whose size is known only then. Closes it again if the limit does
 * not allow it.
 */
static CUresult charge_opened(CUdeviceptr pointer, allocation_undo *undo) {
    struct allocation allocation;
    CUdeviceptr base;
    size_t bytes = 0;
    RELAXED(cuMemGetAddressRange_v2, &base, &bytes, pointer);
    CUresult result = reserve_opened(&allocation, pointer, bytes);
    if (result == CUDA_SUCCESS) return allocation_settle(&allocation, result, pointer, undo);
    allocation_free(&allocation, bytes, pointer, undo);
    return result;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    CUresult result = REAL(cuIpcOpenMemHandle)(pointer, handle, flags);
    return result == CUDA_SUCCESS ? charge_opened(*pointer, close_handle) : result;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle,
                                      unsigned flags) {
    CUresult result = REAL(cuIpcOpenMemHandle_v2)(pointer, handle, flags);
    return result == CUDA_SUCCESS ? charge_opened(*pointer, close_handle) : result;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    struct allocation allocation;
    allocation_lift(&allocation, pointer);
    return allocation_finish_free(&allocation, REAL(cuIpcCloseMemHandle)(pointer), pointer);
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
                                       CUmemPoolPtrExportData *data) {
    CUresult result = REAL(cuMemPoolImportPointer)(pointer, pool, data);
    return result == CUDA_SUCCESS ? charge_opened(*pointer, free_pointer) : result;
}
