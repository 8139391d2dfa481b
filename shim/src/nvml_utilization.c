/*
 * How busy the card is: with the container's own work. Where its time is metered, that is what the
 * container was charged for; else what the driver says of the container's processes.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml.h"
#include "resolve.h"
#include "utilization.h"

#define OF_LATE 1000000u /* us: the driver's samples of this long make the figure */
#define SLACK 16         /* processes that may come between two questions */

static bool metered(struct regions *regions, int card) {
    return card != CARD_NONE && regions_fresh(regions) &&
           __atomic_load_n(&regions->process->cards[card].compute_mode, __ATOMIC_RELAXED) !=
               MIZAR_COMPUTE_NONE;
}

static unsigned long long moments_ago(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned)now.tv_nsec / 1000 - OF_LATE;
}

/* ---- the driver's samples of the container's processes ---- */

/* The own ones of the driver's samples, in *samples, which the caller frees; the number in *count. */
static nvmlReturn_t own_samples(struct regions *regions, nvmlDevice_t device,
                                unsigned long long since, unsigned *count,
                                nvmlProcessUtilizationSample_t **samples) {
    unsigned all = 0, own = 0;
    nvmlReturn_t result =
        REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &all, since);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;
    all += SLACK;
    *samples = calloc(all, sizeof **samples);
    if (!*samples) return NVML_ERROR_MEMORY;
    result = REAL(nvmlDeviceGetProcessUtilization)(device, *samples, &all, since);
    for (unsigned i = 0; result == NVML_SUCCESS && i < all; i++)
        if (nvml_own(regions, (*samples)[i].pid)) (*samples)[own++] = (*samples)[i];
    *count = own;
    return result;
}

/* NVML's way to hand out a list: how many there are, then, where there is room, all of them. */
static nvmlReturn_t hand_out(nvmlReturn_t result, unsigned number, const void *from, size_t size,
                             unsigned *count, void *to) {
    if (result != NVML_SUCCESS) return result;
    unsigned room = *count;
    *count = number;
    if (!number) return NVML_ERROR_NOT_FOUND;
    if (!to || room < number) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, from, number * size);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                    nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since) {
    struct regions *regions;
    nvmlProcessUtilizationSample_t *own = NULL;
    unsigned number = 0;
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    if (!regions || !count)
        return REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since);
    result = own_samples(regions, device, since, &number, &own);
    result = hand_out(result, number, own, sizeof *own, count, samples);
    free(own);
    return result;
}

/* The same as own_samples(), in NVML's newer shape. */
static nvmlReturn_t own_infos(struct regions *regions, nvmlDevice_t device,
                              nvmlProcessesUtilizationInfo_t *all) {
    unsigned own = 0;
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, all);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;
    all->count += SLACK;
    all->infos = calloc(all->count, sizeof *all->infos);
    if (!all->infos) return NVML_ERROR_MEMORY;
    result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, all);
    for (unsigned i = 0; result == NVML_SUCCESS && i < all->count; i++)
        if (nvml_own(regions, all->infos[i].pid)) all->infos[own++] = all->infos[i];
    all->count = own;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                          nvmlProcessesUtilizationInfo_t *list) {
    struct regions *regions;
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    if (!regions || !list) return REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, list);
    nvmlProcessesUtilizationInfo_t all = {.version = list->version, .since = list->since};
    result = own_infos(regions, device, &all);
    result = hand_out(result, all.count, all.infos, sizeof *all.infos, &list->count, list->infos);
    if (result == NVML_SUCCESS) list->since = all.since;
    free(all.infos);
    return result;
}

/* ---- the card's figure ---- */

static nvmlReturn_t sampled(struct regions *regions, nvmlDevice_t device, unsigned *percent) {
    nvmlProcessUtilizationSample_t *samples = NULL;
    unsigned count = 0, sum = 0;
    nvmlReturn_t result = own_samples(regions, device, moments_ago(), &count, &samples);
    for (unsigned i = 0; i < count; i++) sum += samples[i].sm;
    free(samples);
    *percent = sum < 100 ? sum : 100;
    return result == NVML_ERROR_NOT_FOUND ? NVML_SUCCESS : result; /* nobody did anything */
}

static nvmlReturn_t own_percent(struct regions *regions, nvmlDevice_t device, unsigned *percent) {
    int card = nvml_card(regions, device);
    if (!metered(regions, card)) return sampled(regions, device, percent);
    *percent = utilization_charged(regions, card);
    return NVML_SUCCESS;
}

/* Of the time in which memory was read or written, the container's part is as of all the time. */
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    struct regions *regions;
    unsigned own;
    nvmlReturn_t result = REAL(nvmlDeviceGetUtilizationRates)(device, rates);
    if (result != NVML_SUCCESS || (result = nvml_enter(&regions)) != NVML_SUCCESS || !regions)
        return result;
    if ((result = own_percent(regions, device, &own)) != NVML_SUCCESS) return result;
    rates->memory = rates->gpu > own ? rates->memory * own / rates->gpu : rates->memory;
    rates->gpu = own;
    return NVML_SUCCESS;
}

/* The card's samples tell of everybody: each one becomes what the container's figure is now. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long since,
                                         int *value_type, unsigned *count, nvmlSample_t *samples) {
    struct regions *regions;
    unsigned own;
    nvmlReturn_t result =
        REAL(nvmlDeviceGetSamples)(device, type, since, value_type, count, samples);
    if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES)
        return result;
    if (result != NVML_SUCCESS || !samples) return result;
    if ((result = nvml_enter(&regions)) != NVML_SUCCESS || !regions) return result;
    if ((result = own_percent(regions, device, &own)) != NVML_SUCCESS) return result;
    for (unsigned i = 0; i < *count; i++)
        samples[i].value.number = type == NVML_GPU_UTILIZATION_SAMPLES
                                      ? own
                                      : samples[i].value.number * own / 100;
    return NVML_SUCCESS;
}

/* ---- accounting, which the driver keeps per process ---- */

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count,
                                                unsigned *pids) {
    struct regions *regions;
    unsigned own = 0;
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    result = REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    if (result != NVML_SUCCESS || !regions || !pids) return result;
    for (unsigned i = 0; i < *count; i++)
        if (nvml_own(regions, pids[i])) pids[own++] = pids[i];
    *count = own;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid,
                                                 nvmlAccountingStats_t *stats) {
    struct regions *regions;
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    if (regions && !nvml_own(regions, pid)) return NVML_ERROR_NOT_FOUND;
    return REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device,
                                                    nvmlAccountingStats_v2_t *stats) {
    struct regions *regions;
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    if (regions && stats && !nvml_own(regions, stats->pid)) return NVML_ERROR_NOT_FOUND;
    return REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
}
