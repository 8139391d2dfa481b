/* Virtual memory management, which PyTorch's expandable segments and NCCL use. */
#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/allocation.h"
#include "memory/vmm.h"
#include "region/enter.h"

static CUresult create(struct allocation *allocation, CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags) {
    CUresult result = REAL(cuMemCreate)(handle, bytes, prop, flags);
    bool made = result == CUDA_SUCCESS;
    if (made && (!allocation->regions || vmm_add(allocation->regions, &allocation->alloc, *handle)))
        return result;
    if (!made || RELAXED(cuMemRelease, *handle) == CUDA_SUCCESS) allocation_cancel(allocation);
    return made ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* Host memory is not charged, but added, so that its mappings are known: cuMemUnmap may end several. */
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags) {
    struct allocation allocation = {.alloc.card = CARD_NONE};
    CUdevice device = prop ? cards_located(&prop->location) : -1;
    CUresult result = device >= 0 ? allocation_reserve_on(&allocation, bytes, device)
                                  : shim_enter(&allocation.regions);
    return result == CUDA_SUCCESS ? create(&allocation, handle, bytes, prop, flags) : result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct regions *regions = shim_known();
    if (!regions) return REAL(cuMemRelease)(handle);
    struct vmm_handle *memory = vmm_begin(regions, handle);
    CUresult result = REAL(cuMemRelease)(handle);
    vmm_end_release(regions, memory, result == CUDA_SUCCESS);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct regions *regions = shim_known();
    if (!regions) return REAL(cuMemMap)(pointer, bytes, offset, handle, flags);
    struct vmm_mapping *mapping = vmm_begin_map(regions, handle, bytes);
    if (!mapping) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);
    vmm_end_map(regions, pointer, mapping, result == CUDA_SUCCESS);
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    struct regions *regions = shim_known();
    if (!regions) return REAL(cuMemUnmap)(pointer, bytes);
    struct vmm_mapping *lifted = vmm_lift_mappings(regions, pointer, bytes);
    CUresult result = REAL(cuMemUnmap)(pointer, bytes);
    vmm_finish_mappings(regions, pointer, lifted, result == CUDA_SUCCESS);
    return result;
}

/*
 * Only the result shows which memory it is, so the lock is held during the call: another thread
 * might forget the memory meanwhile, which would then be uncharged. The driver waits only for its
 * own locks in this call.
 */
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    struct regions *regions = shim_known();
    if (!regions) return REAL(cuMemRetainAllocationHandle)(handle, address);
    vmm_lock(regions);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS) vmm_retain(regions, *handle);
    vmm_unlock(regions);
    return result;
}

/* The descriptor keeps the memory, even after the handle was released. */
EXPORT CUresult cuMemExportToShareableHandle(void *os_handle, CUmemGenericAllocationHandle handle,
                                             int type, unsigned long long flags) {
    struct regions *regions = shim_known();
    if (!regions || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return REAL(cuMemExportToShareableHandle)(os_handle, handle, type, flags);
    struct vmm_handle *memory = vmm_begin(regions, handle);
    CUresult result = REAL(cuMemExportToShareableHandle)(os_handle, handle, type, flags);
    vmm_end_export(regions, memory, result == CUDA_SUCCESS ? *(int *)os_handle : -1);
    return result;
}

/* The card of an imported handle's memory, or CARD_NONE. */
static int card_of_handle(struct regions *regions, CUmemGenericAllocationHandle handle) {
    CUmemAllocationProp prop = {0};
    if (RELAXED(cuMemGetAllocationPropertiesFromHandle, &prop, handle) != CUDA_SUCCESS)
        return CARD_NONE;
    return cards_of_device(regions, cards_located(&prop.location));
}

/*
 * The driver does not report from which process the memory is, so the importing process is charged
 * too. Memory that is shared within a container counts twice, which is never too little.
 */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                               void *os_handle, int type) {
    struct allocation allocation = {0};
    CUresult result = shim_enter(&allocation.regions);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);
    if (result != CUDA_SUCCESS || !allocation.regions) return result;
    allocation.alloc.card = card_of_handle(allocation.regions, *handle);
    allocation.alloc.kind = ALLOC_IMPORTED;
    if (vmm_add(allocation.regions, &allocation.alloc, *handle)) return CUDA_SUCCESS;
    RELAXED(cuMemRelease, *handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- other objects that keep memory ---------------------------------------------------------- */

/*
 * A multicast object has no memory of its own, but is added as a handle, so that its end is
 * noticed.
 */
EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                                  const CUmulticastObjectProp *prop) {
    struct allocation allocation = {.alloc.card = CARD_NONE};
    CUresult result = shim_enter(&allocation.regions);
    if (result == CUDA_SUCCESS) result = REAL(cuMulticastCreate)(handle, prop);
    if (result != CUDA_SUCCESS || !allocation.regions) return result;
    if (vmm_add(allocation.regions, &allocation.alloc, *handle)) return CUDA_SUCCESS;
    RELAXED(cuMemRelease, *handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool keep(uint64_t keeper, CUmemGenericAllocationHandle handle) {
    struct regions *regions = shim_known();
    if (!regions) return true;
    vmm_lock(regions);
    bool kept = vmm_keep(regions, keeper, handle);
    vmm_unlock(regions);
    return kept;
}

/*
 * The same for the memory that is mapped at `pointer`, which is found by retaining a handle to it.
 */
static bool keep_at(uint64_t keeper, CUdeviceptr pointer) {
    CUmemGenericAllocationHandle handle;
    void *address = (void *)(uintptr_t)pointer;
    if (cuMemRetainAllocationHandle(&handle, address) != CUDA_SUCCESS) return true;
    bool kept = keep(keeper, handle);
    cuMemRelease(handle);
    return kept;
}

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                                   CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                   unsigned long long flags) {
    if (!keep(handle, memory)) return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuMulticastBindMem)(handle, at, memory, offset, bytes, flags);
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device,
                                      size_t at, CUmemGenericAllocationHandle memory,
                                      size_t offset, size_t bytes, unsigned long long flags) {
    if (!keep(handle, memory)) return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuMulticastBindMem_v2)(handle, device, at, memory, offset, bytes, flags);
}

EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at,
                                    CUdeviceptr pointer, size_t bytes, unsigned long long flags) {
    if (!keep_at(handle, pointer)) return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuMulticastBindAddr)(handle, at, pointer, bytes, flags);
}

EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device,
                                       size_t at, CUdeviceptr pointer, size_t bytes,
                                       unsigned long long flags) {
    if (!keep_at(handle, pointer)) return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuMulticastBindAddr_v2)(handle, device, at, pointer, bytes, flags);
}

static bool keep_for_arrays(const CUarrayMapInfo *list, unsigned count) {
    for (unsigned i = 0; list && i < count; i++) {
        bool array = list[i].resource_type == CU_RESOURCE_TYPE_ARRAY;
        uint64_t keeper = alloc_key(array ? ALLOC_ARRAY : ALLOC_MIPMAP, list[i].resource);
        if (list[i].operation == CU_MEM_OPERATION_TYPE_MAP && !keep(keeper, list[i].handle))
            return false;
    }
    return true;
}

EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    if (!keep_for_arrays(list, count)) return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuMemMapArrayAsync)(list, count, stream);
}

EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    if (!keep_for_arrays(list, count)) return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuMemMapArrayAsync_ptsz)(list, count, stream);
}
