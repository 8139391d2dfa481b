/*
 * The container's utilization of the card: what it was charged if the card's time is metered,
 * otherwise the driver's samples of its processes.
 */
#include <stdlib.h>
#include <time.h>

#include "base/numbers.h"
#include "lookup/resolve.h"
#include "nvml/nvml.h"
#include "time/charged_utilization.h"

#define SAMPLED_US 1000000u /* length (us) of the driver's samples from which the figure is computed */
#define SLACK 16         /* room for processes that appear between the two calls */

static unsigned long long sample_window_start(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned)now.tv_nsec / 1000 - SAMPLED_US;
}

/* Sets *percent to the sum of the driver's latest samples of the container's processes. */
static nvmlReturn_t sampled(struct regions *regions, nvmlDevice_t device, unsigned *percent) {
    const unsigned long long since = sample_window_start();
    unsigned count = 0, sum = 0;
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &count, since);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) count = 0;
    count += SLACK;
    nvmlProcessUtilizationSample_t *samples = calloc(count, sizeof *samples);
    if (!samples) return NVML_ERROR_MEMORY;
    result = REAL(nvmlDeviceGetProcessUtilization)(device, samples, &count, since);
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++)
        if (nvml_own(regions, samples[i].pid)) sum += samples[i].sm;
    free(samples);
    *percent = sum < 100 ? sum : 100;
    return result == NVML_ERROR_NOT_FOUND ? NVML_SUCCESS : result; /* no process has a sample */
}

static nvmlReturn_t own_percent(struct regions *regions, nvmlDevice_t device, unsigned *percent) {
    int card = nvml_card(regions, device);
    if (!nvml_metered(regions, card)) return sampled(regions, device, percent);
    *percent = utilization_charged(regions, card);
    return NVML_SUCCESS;
}

/*
 * The container's part of the memory's busy time, taken to be the same as its part of the card's
 * busy time.
 */
static unsigned memory_part(const nvmlUtilization_t *rates, unsigned own) {
    unsigned all = (unsigned)larger(rates->gpu, own);
    return all ? rates->memory * own / all : 0;
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

/*
 * The driver's samples include all containers, so each is replaced by this container's present
 * utilization.
 */
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
