/* NVML beside the fake driver: device k is card k, whatever CUDA's order. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cuda_api.h"
#include "fakecuda.h"

#define MIB ((unsigned long long)1 << 20)
#define FAKE_TOTAL (16384 * MIB)

uint64_t fake_nvml_calls __attribute__((visibility("default")));
uint64_t fake_nvml_uuids __attribute__((visibility("default"))); /* that were asked for */

/* The fake driver, if the program has loaded one into the global scope. */
extern struct fake fake __attribute__((weak));

static unsigned long long used(void) {
    return &fake ? fake.contexts * fake.context_cost : 0;
}

static struct nvmlDevice_st {
    int card;
} devices[FAKE_DEVICES];

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    devices[index].card = (int)index;
    *device = &devices[index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) {
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2((unsigned)(uuid[39] - '0'), device);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    fake_nvml_uuids++;
    snprintf(uuid, length, "GPU-ab000000-0000-0000-0000-0000000000%02x", device->card);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    fake_nvml_calls++;
    (void)device;
    *memory = (nvmlMemory_t){FAKE_TOTAL, FAKE_TOTAL - used(), used()};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    fake_nvml_calls++;
    (void)device;
    memory->total = FAKE_TOTAL;
    memory->reserved = 512 * MIB;
    memory->used = 0;
    memory->free = FAKE_TOTAL;
    return NVML_SUCCESS;
}

/* A process of another container uses every card. */
#define PROCESSES(symbol, type)                                                      \
    EXPORT nvmlReturn_t symbol(nvmlDevice_t device, unsigned *count, type *infos) {  \
        (void)device;                                                                \
        fake_nvml_calls++;                                                           \
        unsigned room = *count;                                                      \
        *count = 1;                                                                  \
        if (!room) return NVML_ERROR_INSUFFICIENT_SIZE;                              \
        infos[0].pid = 4711;                                                         \
        infos[0].used = 4711;                                                        \
        return NVML_SUCCESS;                                                         \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                          nvmlProcessDetailList_t *list) {
    (void)device;
    fake_nvml_calls++;
    if (list->version != 0x1000018) return NVML_ERROR_INVALID_ARGUMENT;
    list->count = 1;
    return NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The caller, as the driver knows him: with FAKE_HOST_PIDS by a PID that means nothing to him. */
static unsigned caller(void) {
    return (unsigned)getpid() + (getenv("FAKE_HOST_PIDS") ? 1u << 22 : 0);
}

/* Another container uses 60 % of the card, the caller 30 %. */
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    (void)device;
    *rates = (nvmlUtilization_t){90, 45};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                    nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since) {
    unsigned room = *count;
    (void)device;
    *count = 2;
    if (!samples || room < 2) return NVML_ERROR_INSUFFICIENT_SIZE;
    samples[0] = (nvmlProcessUtilizationSample_t){.pid = 4711, .time = since + 1, .sm = 60};
    samples[1] = (nvmlProcessUtilizationSample_t){
        .pid = caller(), .time = since + 2, .sm = 30, .memory = 7};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long since,
                                         int *value_type, unsigned *count, nvmlSample_t *samples) {
    (void)device;
    *value_type = 1;
    *count = 1;
    if (samples) samples[0] = (nvmlSample_t){since + 1, {type ? 90 : 250000}};
    return NVML_SUCCESS;
}

/* Functions that report the processes of all containers. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TELLS(symbol, ...)                     \
    EXPORT nvmlReturn_t symbol(__VA_ARGS__) {  \
        fake_nvml_calls++;                     \
        return NVML_SUCCESS;                   \
    }
TELLS(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *list)
TELLS(nvmlDeviceGetAccountingPids, nvmlDevice_t device, unsigned *count, unsigned *pids)
TELLS(nvmlDeviceGetAccountingStats, nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats)
TELLS(nvmlDeviceGetAccountingStats_v2, nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
