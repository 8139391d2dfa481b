/* Utilization of a card in its last sampling period, in total and by process. */
#include <stddef.h>
#include <time.h>

#include "nvml.h"
#include "time_sharing.h"

typedef struct {
    unsigned gpu, memory; /* per cent */
} nvmlUtilization_t;
typedef struct {
    unsigned pid;
    uint64_t timeStamp; /* us since the epoch */
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

static nvmlReturn_t find(nvmlDevice_t device, struct sim **sim, unsigned *number) {
    struct sim_card *card;
    TRY(nvml_sim(sim));
    TRY(nvml_undivided_card(device, &card));
    *number = (unsigned)(card - (*sim)->state->cards);
    return NVML_SUCCESS;
}

static unsigned per_cent(const struct sim *sim, unsigned card, uint64_t ns) {
    uint64_t period = sim->state->cards[card].period_ns;
    return (unsigned)((ns * 100 + period / 2) / period);
}

static const struct sim_timeline *begin_look(struct sim *sim, unsigned card) {
    sim_lock_card(sim, card);
    return sim_advance(sim, card, sim_now(sim));
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    struct sim *sim;
    unsigned card;
    TRY(find(device, &sim, &card));
    if (!rates) return NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_timeline *line = begin_look(sim, card);
    uint64_t busy = line->busy_then - line->busy_before;
    sim_unlock_card(sim, card);
    *rates = (nvmlUtilization_t){per_cent(sim, card, busy), 0};
    return NVML_SUCCESS;
}

/* The end of the last period (us since the epoch), as in NVML's time stamps. */
static uint64_t stamp(const struct sim *sim, unsigned card, const struct sim_timeline *line) {
    struct timespec now;
    uint64_t since = line->now - line->period * sim->state->cards[card].period_ns;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000 - since / 1000;
}

static unsigned list_samples(struct sim *sim, unsigned card,
                             nvmlProcessUtilizationSample_t *samples, unsigned room) {
    unsigned count = 0;
    const struct sim_timeline *line = begin_look(sim, card);
    for (int slot = 0; slot < (int)sim->state->slots_touched; slot++) {
        uint64_t work = line->work_then[slot] - line->work_before[slot];
        pid_t pid = work ? nvml_pid(sim, card, slot) : 0;
        if (!pid) continue;
        if (samples && count < room)
            samples[count] = (nvmlProcessUtilizationSample_t){
                .pid = (unsigned)pid,
                .timeStamp = stamp(sim, card, line),
                .smUtil = per_cent(sim, card, work),
            };
        count++;
    }
    sim_unlock_card(sim, card);
    return count;
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                 nvmlProcessUtilizationSample_t *samples,
                                                 unsigned *count, uint64_t since) {
    struct sim *sim;
    unsigned card;
    (void)since; /* there is one sample for each process, always of the last period */
    TRY(find(device, &sim, &card));
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count;
    *count = list_samples(sim, card, samples, room);
    if (!*count) return NVML_ERROR_NOT_FOUND;
    return samples && *count <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
