/*
 * How busy the card is: with the container's own work. Where its time is metered, that is what the
 * container and its processes were charged for; else what the driver says of those processes.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/numbers.h"
#include "lookup/resolve.h"
#include "nvml/nvml.h"
#include "time/activity.h"
#include "time/utilization.h"

#define OF_LATE 1000000u /* us: the driver's samples of this long make the figure */
#define SLACK 16         /* processes that may come between two questions */

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
static nvmlReturn_t number_of(unsigned number, unsigned room, unsigned *count) {
    *count = number;
    if (!number) return NVML_ERROR_NOT_FOUND;
    return room < number ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t hand_out(nvmlReturn_t result, unsigned number, const void *from, size_t size,
                             unsigned *count, void *to) {
    if (result == NVML_SUCCESS) result = number_of(number, to ? *count : 0, count);
    if (result == NVML_SUCCESS) memcpy(to, from, number * size);
    return result;
}

/* ---- the container's own account of its processes ---- */

/* Of the time in which memory was read or written, somebody's part is as of all the time. */
static unsigned memory_part(const nvmlUtilization_t *rates, unsigned own) {
    unsigned all = (unsigned)larger(rates->gpu, own);
    return all ? rates->memory * own / all : 0;
}

struct list {
    void *to;
    nvmlUtilization_t rates; /* the card's */
};

static void put_sample(void *list, unsigned index, const struct activity *own) {
    const struct list *put = list;
    ((nvmlProcessUtilizationSample_t *)put->to)[index] =
        (nvmlProcessUtilizationSample_t){.pid = own->pid,
                                         .time = own->stamp,
                                         .sm = own->percent,
                                         .memory = memory_part(&put->rates, own->percent)};
}

static void put_info(void *list, unsigned index, const struct activity *own) {
    const struct list *put = list;
    ((nvmlProcessUtilizationInfo_v1_t *)put->to)[index] =
        (nvmlProcessUtilizationInfo_v1_t){.pid = own->pid,
                                          .time = own->stamp,
                                          .sm = own->percent,
                                          .memory = memory_part(&put->rates, own->percent)};
}

/* `real`: the driver's answer to a question for the number alone, for its errors. */
static nvmlReturn_t told_by_account(nvmlReturn_t real, struct regions *regions, nvmlDevice_t device,
                                    unsigned long long since, activity_found *put, unsigned *count,
                                    void *to) {
    struct list list = {.to = to};
    unsigned room = to ? *count : 0;
    nvmlReturn_t result = nvml_would_answer(real);
    if (result != NVML_SUCCESS) return result;
    if (!room) return number_of(activity_most(regions), 0, count);
    REAL(nvmlDeviceGetUtilizationRates)(device, &list.rates);
    int card = nvml_card(regions, device);
    return number_of(activity_list(regions, card, since, put, &list, room), room, count);
}

/* ---- what both make ---- */

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
    if (nvml_metered(regions, nvml_card(regions, device)))
        return told_by_account(REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &number, since),
                               regions, device, since, put_sample, count, samples);
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
    if (nvml_metered(regions, nvml_card(regions, device)))
        return told_by_account(REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &all), regions,
                               device, list->since, put_info, &list->count, list->infos);
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
    if (!nvml_metered(regions, card)) return sampled(regions, device, percent);
    *percent = utilization_charged(regions, card);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    struct regions *regions;
    unsigned own;
    nvmlReturn_t result = REAL(nvmlDeviceGetUtilizationRates)(device, rates);
    if (result != NVML_SUCCESS || (result = nvml_enter(&regions)) != NVML_SUCCESS || !regions)
        return result;
    if ((result = own_percent(regions, device, &own)) != NVML_SUCCESS) return result;
    *rates = (nvmlUtilization_t){own, memory_part(rates, own)};
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
