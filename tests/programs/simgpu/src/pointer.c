/* Attributes of pointers. */
#include "host.h"
#include "physical.h"

enum {
    CONTEXT = 1,
    MEMORY_TYPE,
    DEVICE_POINTER,
    HOST_POINTER,
    SYNC_MEMOPS = 6,
    BUFFER_ID,
    IS_MANAGED,
    DEVICE_ORDINAL,
    IS_LEGACY_CUDA_IPC_CAPABLE,
    RANGE_START_ADDR,
    RANGE_SIZE,
    MAPPED,
    ALLOWED_HANDLE_TYPES,
    IS_GPU_DIRECT_RDMA_CAPABLE,
    ACCESS_FLAGS,
    MEMPOOL_HANDLE,
    MAPPING_SIZE,
    MAPPING_BASE_ADDR,
    MEMORY_BLOCK_ID,
    IS_HW_DECOMPRESS_CAPABLE,
    LOCALITY_DOMAIN_ORDINAL,
};

/* The attributes of a pointer, for device and host memory alike. */
struct known {
    CUcontext context;
    unsigned type;
    uint64_t base, bytes, id;
    int ordinal, managed, ipc;
    void *host;
    CUmemoryPool pool;
};

static bool know_device(struct known *known, CUdeviceptr pointer) {
    pthread_mutex_lock(&memory_lock);
    const struct allocation *found = memory_find(pointer);
    if (found)
        *known = (struct known){
            .context = found->context,
            .type = CU_MEMORYTYPE_DEVICE,
            .base = found->base,
            .bytes = found->bytes,
            .id = found->id,
            .ordinal = found->device,
            .managed = found->kind == MEMORY_MANAGED,
            .ipc = found->kind == MEMORY_DEVICE,
            .host = found->kind == MEMORY_MANAGED ? (void *)(uintptr_t)pointer : NULL,
            .pool = found->pool,
        };
    pthread_mutex_unlock(&memory_lock);
    return found;
}

/* Mapped memory belongs to no context. */
static bool know_mapped(struct known *known, CUdeviceptr pointer) {
    pthread_mutex_lock(&memory_lock);
    const struct physical *found = vmm_physical_at(pointer);
    if (found) {
        const struct region *region = address_owner(pointer);
        bool on_host = found->props.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
        *known = (struct known){
            .type = on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
            .base = region->base,
            .bytes = region->bytes,
            .ordinal = on_host ? -1 : found->props.location.id,
            .host = on_host ? (void *)(uintptr_t)pointer : NULL,
        };
    }
    pthread_mutex_unlock(&memory_lock);
    return found;
}

static bool know_host(struct known *known, CUdeviceptr pointer) {
    const struct host_range *range = host_find((void *)(uintptr_t)pointer);
    if (!range) return false;
    *known = (struct known){
        .context = range->context,
        .type = CU_MEMORYTYPE_HOST,
        .base = (uint64_t)(uintptr_t)range->base,
        .bytes = range->bytes,
        .host = (void *)(uintptr_t)pointer,
        .ordinal = range->context ? range->context->device : 0,
    };
    return true;
}

static bool know(struct known *known, CUdeviceptr pointer) {
    return know_device(known, pointer) || know_mapped(known, pointer) || know_host(known, pointer);
}

static CUresult tell(void *value, int attribute, CUdeviceptr pointer, const struct known *known) {
    switch (attribute) {
    case CONTEXT: *(CUcontext *)value = known->context; break;
    case MEMORY_TYPE: *(unsigned *)value = known->type; break;
    case DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case HOST_POINTER: *(void **)value = known->host; break;
    case SYNC_MEMOPS: *(int *)value = 0; break;
    case MEMORY_BLOCK_ID:
    case BUFFER_ID: *(uint64_t *)value = known->id; break;
    case IS_MANAGED: *(int *)value = known->managed; break;
    case DEVICE_ORDINAL: *(int *)value = known->ordinal; break;
    case IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)value = known->ipc; break;
    case RANGE_START_ADDR:
    case MAPPING_BASE_ADDR: *(CUdeviceptr *)value = known->base; break;
    case RANGE_SIZE:
    case MAPPING_SIZE: *(size_t *)value = known->bytes; break;
    case MAPPED: *(int *)value = 1; break;
    case ALLOWED_HANDLE_TYPES: *(uint64_t *)value = 0; break;
    case IS_GPU_DIRECT_RDMA_CAPABLE: *(int *)value = 0; break;
    case ACCESS_FLAGS: *(int *)value = CU_MEM_ACCESS_READWRITE; break;
    case IS_HW_DECOMPRESS_CAPABLE: *(int *)value = 0; break;
    case LOCALITY_DOMAIN_ORDINAL: *(int *)value = -1; break;
    case MEMPOOL_HANDLE: *(CUmemoryPool *)value = known->pool; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (attribute == HOST_POINTER && !known->host) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer) {
    struct known known;
    TRY(driver_ready());
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (!know(&known, pointer)) return CUDA_ERROR_INVALID_VALUE;
    return tell(value, attribute, pointer, &known);
}

/* Returns several attributes at once. For an unknown pointer they are empty, which is not an
 * error. */
API CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values,
                                    CUdeviceptr pointer) {
    struct known known = {.ordinal = -2};
    TRY(driver_ready());
    if (!attributes || !values) return CUDA_ERROR_INVALID_VALUE;
    bool found = know(&known, pointer);
    for (unsigned i = 0; i < count; i++) {
        CUdeviceptr shown = found ? pointer : 0;
        CUresult result = tell(values[i], attributes[i], shown, &known);
        if (result == CUDA_ERROR_NOT_SUPPORTED) return result;
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer) {
    struct known known;
    TRY(driver_ready());
    if (!value || attribute != SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    bool found = know_device(&known, pointer) || know_mapped(&known, pointer);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
