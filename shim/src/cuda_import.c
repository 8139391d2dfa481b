/*
 * Memory that comes from elsewhere: other APIs, other processes. It is charged to whoever imports
 * it, since it stays as long as he keeps it.
 */
#include "charge.h"
#include "resolve.h"

static CUresult undo_external(uint64_t key) {
    return REAL(cuDestroyExternalMemory)(
        (CUexternalMemory)(uintptr_t)(key ^ alloc_key(ALLOC_EXTERNAL, NULL)));
}

static CUresult close_handle(uint64_t pointer) {
    return REAL(cuIpcCloseMemHandle)(pointer);
}

static CUresult free_pointer(uint64_t pointer) {
    return REAL(cuMemFree_v2)(pointer);
}

EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *descriptor) {
    struct charge charge;
    CUresult result = charge_current(&charge, descriptor ? descriptor->bytes : 0);
    charge.alloc.kind = ALLOC_EXTERNAL;
    if (result == CUDA_SUCCESS) result = REAL(cuImportExternalMemory)(memory, descriptor);
    return charge_settle(&charge, result, memory ? alloc_key(ALLOC_EXTERNAL, *memory) : 0,
                         undo_external);
}

EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct charge charge;
    uint64_t key = alloc_key(ALLOC_EXTERNAL, memory);
    charge_lift(&charge, memory ? key : 0);
    return charge_finish(&charge, REAL(cuDestroyExternalMemory)(memory), key);
}

/* Only the opened pointer tells the size; what is too much is closed again. */
static CUresult charge_opened(CUdeviceptr pointer, charge_undo *undo) {
    struct charge charge;
    CUdeviceptr base;
    size_t bytes = 0;
    REAL(cuMemGetAddressRange_v2)(&base, &bytes, pointer);
    CUresult result = charge_current(&charge, bytes);
    charge.alloc.kind = ALLOC_IMPORTED;
    if (result == CUDA_SUCCESS) return charge_settle(&charge, result, pointer, undo);
    charge_free(&charge, bytes, pointer, undo);
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
    struct charge charge;
    charge_lift(&charge, pointer);
    return charge_finish(&charge, REAL(cuIpcCloseMemHandle)(pointer), pointer);
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
                                       CUmemPoolPtrExportData *data) {
    CUresult result = REAL(cuMemPoolImportPointer)(pointer, pool, data);
    return result == CUDA_SUCCESS ? charge_opened(*pointer, free_pointer) : result;
}
