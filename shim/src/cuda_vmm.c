/* Virtual memory management: PyTorch's expandable segments, NCCL. */
#include "account.h"
#include "cards.h"
#include "resolve.h"
#include "vmm.h"

static CUresult create(struct charge *charge, CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags) {
    CUresult result = REAL(cuMemCreate)(handle, bytes, prop, flags);
    if (result == CUDA_SUCCESS && charge->reserved && !vmm_add(charge, *handle)) {
        REAL(cuMemRelease)(*handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) charge_cancel(charge);
    return result;
}

/* Host memory is not ours to count. */
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags) {
    struct charge charge = {0};
    bool device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult result = device ? charge_device(&charge, bytes, prop->location.id)
                             : shim_enter(&charge.regions);
    return result == CUDA_SUCCESS ? create(&charge, handle, bytes, prop, flags) : result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct regions *regions = shim_known();
    if (!regions) return REAL(cuMemRelease)(handle);
    vmm_lock(regions);
    CUresult result = REAL(cuMemRelease)(handle);
    if (result == CUDA_SUCCESS) vmm_release(regions, handle);
    vmm_unlock(regions);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct regions *regions = shim_known();
    if (!regions) return REAL(cuMemMap)(pointer, bytes, offset, handle, flags);
    vmm_lock(regions);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (vmm_may_map(regions, handle, bytes)) {
        result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);
        if (result == CUDA_SUCCESS) vmm_map(regions, pointer, bytes, handle);
    }
    vmm_unlock(regions);
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    struct regions *regions = shim_known();
    if (!regions) return REAL(cuMemUnmap)(pointer, bytes);
    vmm_lock(regions);
    CUresult result = REAL(cuMemUnmap)(pointer, bytes);
    if (result == CUDA_SUCCESS) vmm_unmap(regions, pointer, bytes);
    vmm_unlock(regions);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    struct regions *regions = shim_known();
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS && regions) vmm_retain(regions, *handle);
    return result;
}

/* Where the memory of the imported handle is: on a card of ours, or elsewhere. */
static int card_of_handle(struct regions *regions, CUmemGenericAllocationHandle handle) {
    CUmemAllocationProp prop = {0};
    if (REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, handle) != CUDA_SUCCESS ||
        prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CARD_NONE;
    return cards_of_device(regions, prop.location.id);
}

/*
 * Whose memory it was is not to be known, so whoever imports is charged as well: what is shared
 * within a container counts twice, but never too little.
 */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                               void *os_handle, int type) {
    struct charge charge = {0};
    CUresult result = shim_enter(&charge.regions);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);
    if (result != CUDA_SUCCESS || !charge.regions) return result;
    charge.alloc.card = card_of_handle(charge.regions, *handle);
    if (charge.alloc.card == CARD_NONE || vmm_add(&charge, *handle)) return CUDA_SUCCESS;
    REAL(cuMemRelease)(*handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}
