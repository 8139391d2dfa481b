/* Multicast objects: handles without memory of their own, to which memory of several cards is
 * bound. Writes to an object's address do not reach the bound memory. */
#include "physical.h"

/* The place of a card's memory in the object. Offsets leave the lower bits free for the card. */
static uint64_t place_of(uint64_t offset, unsigned card) {
    return offset | card;
}

static struct physical *object_of(CUmemGenericAllocationHandle handle) {
    struct physical *physical = physical_of(handle);
    return physical && physical->team ? physical : NULL;
}

API CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *props, int which) {
    TRY(driver_ready());
    if (!bytes || !props || which < 0 || which > 1) return CUDA_ERROR_INVALID_VALUE;
    *bytes = PAGE_BYTES;
    return CUDA_SUCCESS;
}

API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                               const CUmulticastObjectProp *props) {
    CUmemAllocationProp none = {0};
    struct physical *made;
    TRY(driver_ready());
    if (!handle || !props || !props->size || props->size % PAGE_BYTES || props->flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!props->numDevices || props->numDevices > (unsigned)driver.count)
        return CUDA_ERROR_INVALID_VALUE;
    none.requestedHandleTypes = (int)props->handleTypes;
    TRY(physical_create(handle, props->size, &none, &made));
    made->team = props->numDevices;
    return CUDA_SUCCESS;
}

static CUresult join(struct physical *object, unsigned card) {
    unsigned mask = 1u << card;
    if (!object || object->joined & mask) return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_popcount(object->joined) == (int)object->team) return CUDA_ERROR_INVALID_VALUE;
    object->joined |= mask;
    return CUDA_SUCCESS;
}

API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
    TRY(driver_device(device));
    pthread_mutex_lock(&memory_lock);
    CUresult result = join(object_of(handle), driver.card[device]);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

/* Memory can be bound once all cards of the team have been added. */
static CUresult bind(struct physical *object, uint64_t at, struct physical *memory, uint64_t offset,
                     uint64_t bytes) {
    if (!object || !memory || !memory->on_card || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if ((at | offset | bytes) % PAGE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    if (at + bytes > object->bytes || offset + bytes > memory->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_popcount(object->joined) < (int)object->team) return CUDA_ERROR_ILLEGAL_STATE;
    if (!(object->joined & 1u << memory->card)) return CUDA_ERROR_INVALID_DEVICE;
    bool done = holding_add(&object->bound, place_of(at, memory->card), memory);
    return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                                CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                uint64_t flags) {
    TRY(driver_ready());
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = bind(object_of(handle), at, physical_of(memory), offset, bytes);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

API CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                                   CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                   uint64_t flags) {
    TRY(driver_device(device));
    return cuMulticastBindMem(handle, at, memory, offset, bytes, flags);
}

API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at,
                                 CUdeviceptr pointer, size_t bytes, uint64_t flags) {
    TRY(driver_ready());
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = bind(object_of(handle), at, vmm_physical_at(pointer), 0, bytes);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

API CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                                    CUdeviceptr pointer, size_t bytes, uint64_t flags) {
    TRY(driver_device(device));
    return cuMulticastBindAddr(handle, at, pointer, bytes, flags);
}

/* Unbinds the whole range that was bound there, whatever size is given. */
static CUresult unbind(struct physical *object, uint64_t place) {
    bool done = object && holding_remove(&object->bound, place);
    return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                               size_t bytes) {
    TRY(driver_device(device));
    if (!bytes || at % PAGE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = unbind(object_of(handle), place_of(at, driver.card[device]));
    pthread_mutex_unlock(&memory_lock);
    return result;
}
