/* NVML's entry points for memory. nvidia-smi and monitors call them without a process slot. */
#include "lookup/resolve.h"
#include "memory/memory_info.h"
#include "nvml/nvml.h"

/*
 * The memory of the device as the container sees it, from the figures of the whole card. Returns false
 * if these are to be shown, since there is no Mizar here, or if *result has become an error.
 */
static bool container_memory(nvmlDevice_t device, uint64_t total, uint64_t free, struct memory_info *shown,
                             nvmlReturn_t *result) {
    struct regions *regions;
    *result = nvml_enter(&regions);
    if (*result != NVML_SUCCESS || !regions) return false;
    *shown = memory_info(regions, nvml_card(regions, device), total, free);
    return true;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct memory_info shown;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result == NVML_SUCCESS && container_memory(device, memory->total, memory->free, &shown, &result))
        *memory = (nvmlMemory_t){.total = shown.total, .free = shown.free, .used = shown.used};
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct memory_info shown;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result != NVML_SUCCESS || !container_memory(device, memory->total, memory->free, &shown, &result))
        return result;
    memory->total = shown.total;
    memory->reserved = 0; /* the driver's own memory is not part of the limit */
    memory->free = shown.free;
    memory->used = shown.used;
    return NVML_SUCCESS;
}
