/* NVML's entry points for memory. nvidia-smi and monitors call them without a process slot. */
#include "lookup/resolve.h"
#include "memory/memory_info.h"
#include "nvml/nvml.h"

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct regions *regions;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result != NVML_SUCCESS || (result = nvml_enter(&regions)) != NVML_SUCCESS || !regions)
        return result;
    struct memory_info answer =
        memory_info(regions, nvml_card(regions, device), memory->total, memory->free);
    *memory = (nvmlMemory_t){.total = answer.total, .free = answer.free, .used = answer.used};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct regions *regions;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result != NVML_SUCCESS || (result = nvml_enter(&regions)) != NVML_SUCCESS || !regions)
        return result;
    struct memory_info answer =
        memory_info(regions, nvml_card(regions, device), memory->total, memory->free);
    memory->total = answer.total;
    memory->reserved = 0; /* the driver's own memory is not part of the limit */
    memory->free = answer.free;
    memory->used = answer.used;
    return NVML_SUCCESS;
}
