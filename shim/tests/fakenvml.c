/* NVML beside the fake driver: device k is card k, whatever CUDA's order. */
#include <stdio.h>

#include "cuda_api.h"
#include "fakecuda.h"

#define MIB ((unsigned long long)1 << 20)
#define FAKE_TOTAL (16384 * MIB)

uint64_t fake_nvml_calls __attribute__((visibility("default")));

/* The driver beside it, when the program has loaded one for everybody. */
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

/* Somebody else is on every card. */
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
