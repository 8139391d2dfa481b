#include "memory/whole_card_memory.h"

#include <dlfcn.h>

#include "base/cuda_api.h"
#include "lookup/resolve.h"

static bool ask(const char *uuid, uint64_t *bytes) {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    bool known = REAL(nvmlDeviceGetHandleByUUID)(uuid, &device) == NVML_SUCCESS &&
                 REAL(nvmlDeviceGetMemoryInfo)(device, &memory) == NVML_SUCCESS;
    if (known) *bytes = memory.used;
    return known;
}

/*
 * Uses an NVML session of its own. NVML counts sessions, so one of the program's is not affected.
 */
bool nvml_memory_used(struct regions *regions, int card, uint64_t *bytes) {
    char uuid[MIZAR_UUID_SIZE];
    if (!regions_uuid(regions, card, uuid)) return false;
    if (!resolve_libc()->dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)) return false;
    if (REAL(nvmlInit_v2)() != NVML_SUCCESS) return false;
    bool known = ask(uuid, bytes);
    REAL(nvmlShutdown)();
    return known;
}
