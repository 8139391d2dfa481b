/* Cards divided by MIG, and their instances. */
#include <stddef.h>

#include "nvml.h"

enum { MAX_INSTANCES = 7 };

typedef struct {
    unsigned multiprocessorCount;
    unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount;
    unsigned gpuInstanceSliceCount, computeInstanceSliceCount;
    uint64_t memorySizeMB;
} nvmlDeviceAttributes_t;

/* Sets *card to the MIG instance behind a handle. NVML_ERROR_INVALID_ARGUMENT for a whole card. */
static nvmlReturn_t instance(nvmlDevice_t device, struct sim_card **card) {
    TRY(nvml_card(device, card));
    return (*card)->parent ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_instance) {
    struct sim_card *card;
    TRY(nvml_card(device, &card));
    if (!is_instance) return NVML_ERROR_INVALID_ARGUMENT;
    *is_instance = card->parent != 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = (unsigned)card->divided;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = MAX_INSTANCES;
    return NVML_SUCCESS;
}

/* Returns NVML_ERROR_NOT_FOUND if the card has no instance of that index, even if it has one with a
 * higher index. */
API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                     nvmlDevice_t *found) {
    struct sim *sim;
    struct sim_card *card;
    int at = -1;
    TRY(nvml_sim(&sim));
    TRY(nvml_whole_card(device, &card));
    if (!found || index >= MAX_INSTANCES) return NVML_ERROR_INVALID_ARGUMENT;
    do at = sim_next_instance(sim, (unsigned)(card - sim->state->cards), at);
    while (at >= 0 && index--);
    if (at < 0) return NVML_ERROR_NOT_FOUND;
    *found = nvml_handle((unsigned)at);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device,
                                                              nvmlDevice_t *whole) {
    struct sim_card *card;
    TRY(instance(device, &card));
    if (!whole) return NVML_ERROR_INVALID_ARGUMENT;
    *whole = nvml_handle((unsigned)card->parent - 1);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id) {
    struct sim_card *card;
    TRY(instance(device, &card));
    if (!id) return NVML_ERROR_INVALID_ARGUMENT;
    *id = (unsigned)card->gpu_instance;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id) {
    struct sim_card *card;
    TRY(instance(device, &card));
    if (!id) return NVML_ERROR_INVALID_ARGUMENT;
    *id = (unsigned)card->compute_instance;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *found) {
    struct sim_card *card;
    TRY(instance(device, &card));
    if (!found) return NVML_ERROR_INVALID_ARGUMENT;
    *found = (nvmlDeviceAttributes_t){
        .multiprocessorCount = (unsigned)card->sm_count,
        .gpuInstanceSliceCount = (unsigned)card->slices,
        .computeInstanceSliceCount = (unsigned)card->slices,
        .memorySizeMB = card->memory_bytes >> 20,
    };
    return NVML_SUCCESS;
}

/* The slices of instances by NVML's number of their size; 0: no card here has that size. */
static const unsigned SIZES[] = {1, 2, 3, 4, 7, 0, 6};

enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES, SIZE_NUMBERS = 18, COMPUTE_SIZE_NUMBERS = 9 };

typedef struct {
    unsigned start, size;
} nvmlPlacement_t;

typedef struct {
    nvmlDevice_t device;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    nvmlDevice_t device, gpuInstance;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    unsigned id, sliceCount, instanceCount, multiprocessorCount;
    unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

/* NVML's number of the size of an instance, which is here its profile's ID too. */
static unsigned size_number(const struct sim_card *card) {
    unsigned number = 0;
    while (number < SIZE_COUNT && SIZES[number] != card->slices) number++;
    return number;
}

/* Sets *slices to those of a size. NVML_ERROR_NOT_SUPPORTED for a size that no card has. */
static nvmlReturn_t slices_of(unsigned number, unsigned numbers, unsigned *slices) {
    if (number >= numbers) return NVML_ERROR_INVALID_ARGUMENT;
    *slices = number < SIZE_COUNT ? SIZES[number] : 0;
    return *slices ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The handle of a GPU instance, and of the one compute instance in it, is that of the MIG device
 * that the two make. */
API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id,
                                              nvmlDevice_t *found) {
    struct sim *sim;
    struct sim_card *card;
    int at = -1;
    TRY(nvml_sim(&sim));
    TRY(nvml_whole_card(device, &card));
    if (!found) return NVML_ERROR_INVALID_ARGUMENT;
    do at = sim_next_instance(sim, (unsigned)(card - sim->state->cards), at);
    while (at >= 0 && sim->state->cards[at].gpu_instance != id);
    if (at < 0) return NVML_ERROR_NOT_FOUND;
    *found = nvml_handle((unsigned)at);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlDevice_t gpu_instance, nvmlGpuInstanceInfo_t *info) {
    struct sim_card *card;
    TRY(instance(gpu_instance, &card));
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){
        .device = nvml_handle((unsigned)card->parent - 1),
        .id = (unsigned)card->gpu_instance,
        .profileId = size_number(card),
        .placement = {.size = (unsigned)card->slices},
    };
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlDevice_t gpu_instance, unsigned id,
                                                       nvmlDevice_t *found) {
    struct sim_card *card;
    TRY(instance(gpu_instance, &card));
    if (!found) return NVML_ERROR_INVALID_ARGUMENT;
    if (id != card->compute_instance) return NVML_ERROR_NOT_FOUND;
    *found = gpu_instance;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlDevice_t compute_instance,
                                               nvmlComputeInstanceInfo_t *info) {
    struct sim_card *card;
    TRY(instance(compute_instance, &card));
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlComputeInstanceInfo_t){
        .device = nvml_handle((unsigned)card->parent - 1),
        .gpuInstance = compute_instance,
        .id = (unsigned)card->compute_instance,
        .profileId = size_number(card),
        .placement = {.size = (unsigned)card->slices},
    };
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned number,
                                                     nvmlGpuInstanceProfileInfo_t *info) {
    struct sim_card *card;
    unsigned slices;
    TRY(nvml_whole_card(device, &card));
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    TRY(slices_of(number, SIZE_NUMBERS, &slices));
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = number, .sliceCount = slices, .instanceCount = MAX_INSTANCES / slices};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    nvmlDevice_t gpu_instance, unsigned number, unsigned engines,
    nvmlComputeInstanceProfileInfo_t *info) {
    struct sim_card *card;
    unsigned slices;
    TRY(instance(gpu_instance, &card));
    if (!info || engines) return NVML_ERROR_INVALID_ARGUMENT;
    TRY(slices_of(number, COMPUTE_SIZE_NUMBERS, &slices));
    if (slices > card->slices) return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = number, .sliceCount = slices, .instanceCount = (unsigned)card->slices / slices};
    return NVML_SUCCESS;
}

/* Sets a bit set with the NUMA node of the card, which is also that of its instances. */
API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words,
                                             unsigned long *nodes, int scope) {
    enum { BITS = 8 * sizeof(unsigned long) };
    struct sim_card *card;
    (void)scope;
    TRY(nvml_whole_card(device, &card));
    if (!words || !nodes) return NVML_ERROR_INVALID_ARGUMENT;
    if (!card->numa) return NVML_ERROR_NOT_SUPPORTED;
    if ((card->numa - 1) / BITS >= words) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < words; i++) nodes[i] = 0;
    nodes[(card->numa - 1) / BITS] |= 1ul << (card->numa - 1) % BITS;
    return NVML_SUCCESS;
}
