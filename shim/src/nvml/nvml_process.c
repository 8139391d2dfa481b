/*
 * The processes on the card: those of the container, with the PIDs that they have in it and the bytes of the
 * shim's account. The driver would list every process on the card or, across PID namespaces, none.
 */
#include "lookup/resolve.h"
#include "nvml/nvml.h"
#include "region/dead_processes.h"
#include "region/memory_ledger.h"

/*
 * Calls `found` for the first `room` processes of the container that hold memory on the card.
 * Returns the number of all such processes.
 */
static unsigned each_process(struct regions *regions, int card,
                             void (*found)(void *infos, unsigned index, unsigned pid,
                                           uint64_t bytes),
                             void *infos, unsigned room) {
    unsigned count = 0, slots = regions_slots_used(regions->usage);
    for (unsigned slot = 0; card != CARD_NONE && slot < slots; slot++) {
        struct mizar_usage_slot *entry = &regions->usage->slots[slot];
        uint64_t bytes = ledger_slot_bytes(regions->usage, (unsigned)card, slot);
        if (!bytes || __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) != MIZAR_STATE_READY)
            continue;
        if (count < room) found(infos, count, entry->pid, bytes);
        count++;
    }
    return count;
}

static void put_v1(void *infos, unsigned index, unsigned pid, uint64_t bytes) {
    ((nvmlProcessInfo_v1_t *)infos)[index] = (nvmlProcessInfo_v1_t){pid, bytes};
}

static void put(void *infos, unsigned index, unsigned pid, uint64_t bytes) {
    ((nvmlProcessInfo_t *)infos)[index] =
        (nvmlProcessInfo_t){pid, bytes, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
}

/*
 * `real`: the driver's result of asking only for the number of processes; its errors are returned.
 */
static nvmlReturn_t list(nvmlReturn_t real, nvmlDevice_t device, unsigned *count, void *infos,
                         struct regions *regions,
                         void (*found)(void *infos, unsigned index, unsigned pid,
                                       uint64_t bytes)) {
    if (real != NVML_SUCCESS && real != NVML_ERROR_INSUFFICIENT_SIZE) return real;
    if (!count || (*count && !infos)) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count;
    dead_processes_settle_sometimes(regions);
    *count = each_process(regions, nvml_card(regions, device), found, infos, room);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Containers have no graphics processes, and processes under MPS are listed as compute processes. */
static nvmlReturn_t none(nvmlReturn_t real, unsigned *count) {
    if (real != NVML_SUCCESS && real != NVML_ERROR_INSUFFICIENT_SIZE) return real;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

#define COMPUTE(symbol, type, put)                                                            \
    EXPORT nvmlReturn_t symbol(nvmlDevice_t device, unsigned *count, type *infos) {           \
        struct regions *regions;                                                              \
        unsigned number = 0;                                                                  \
        nvmlReturn_t result = nvml_enter(&regions);                                           \
        if (result != NVML_SUCCESS) return result;                                            \
        if (!regions) return REAL(symbol)(device, count, infos);                              \
        return list(REAL(symbol)(device, &number, NULL), device, count, infos, regions, put); \
    }

#define GRAPHICS(symbol, type)                                                      \
    EXPORT nvmlReturn_t symbol(nvmlDevice_t device, unsigned *count, type *infos) { \
        struct regions *regions;                                                    \
        unsigned number = 0;                                                        \
        nvmlReturn_t result = nvml_enter(&regions);                                 \
        if (result != NVML_SUCCESS) return result;                                  \
        if (!regions) return REAL(symbol)(device, count, infos);                    \
        return none(REAL(symbol)(device, &number, NULL), count);                    \
    }

COMPUTE(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, put_v1)
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, put)
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, put)
GRAPHICS(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
GRAPHICS(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)
GRAPHICS(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
GRAPHICS(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
GRAPHICS(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)
GRAPHICS(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

static void put_detail(void *infos, unsigned index, unsigned pid, uint64_t bytes) {
    ((nvmlProcessDetail_v1_t *)infos)[index] = (nvmlProcessDetail_v1_t){
        pid, bytes, NVML_NO_INSTANCE, NVML_NO_INSTANCE, NVML_NOT_AVAILABLE};
}

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                          nvmlProcessDetailList_t *all) {
    struct regions *regions;
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    if (!regions || !all) return REAL(nvmlDeviceGetRunningProcessDetailList)(device, all);
    nvmlProcessDetailList_t number = {.version = all->version, .mode = all->mode};
    result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, &number);
    if (all->mode != NVML_PROCESS_MODE_COMPUTE && all->mode != NVML_PROCESS_MODE_ALL)
        return none(result, &all->count);
    return list(result, device, &all->count, all->infos, regions, put_detail);
}

/*
 * ---- utilization and accounting by process ----
 * NOT_SUPPORTED is also NVML's answer for a card in MIG mode. The driver would report processes of other
 * containers. Monitors then show the card's utilization instead, which the shim answers for the container.
 */
#define NOT_SUPPORTED(symbol, parameters, arguments)                        \
    EXPORT nvmlReturn_t symbol parameters {                                 \
        struct regions *regions;                                            \
        nvmlReturn_t result = nvml_enter(&regions);                         \
        if (result != NVML_SUCCESS) return result;                          \
        return regions ? NVML_ERROR_NOT_SUPPORTED : REAL(symbol) arguments; \
    }

NOT_SUPPORTED(nvmlDeviceGetProcessUtilization,
              (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
               unsigned long long since),
              (device, samples, count, since))
NOT_SUPPORTED(nvmlDeviceGetProcessesUtilizationInfo,
              (nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *list), (device, list))
NOT_SUPPORTED(nvmlDeviceGetAccountingPids, (nvmlDevice_t device, unsigned *count, unsigned *pids),
              (device, count, pids))
NOT_SUPPORTED(nvmlDeviceGetAccountingStats,
              (nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats), (device, pid, stats))
NOT_SUPPORTED(nvmlDeviceGetAccountingStats_v2,
              (nvmlDevice_t device, nvmlAccountingStats_v2_t *stats), (device, stats))
