/* Events for critical errors. Each card keeps its last errors, and an event set counts how many of
 * each card it has returned. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "nvml.h"

enum { XID_CRITICAL_ERROR = 8, SAMPLE_NS = 5000000 };

typedef struct nvmlEventSet_st {
    uint64_t types[SIM_MAX_CARDS]; /* the requested event types, per card */
    uint64_t told[SIM_MAX_CARDS];
} *nvmlEventSet_t;

typedef struct {
    nvmlDevice_t device;
    uint64_t eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    TRY(nvml_sim(NULL));
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    TRY(nvml_sim(NULL));
    free(set);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, uint64_t *types) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (!types) return NVML_ERROR_INVALID_ARGUMENT;
    *types = XID_CRITICAL_ERROR;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, uint64_t types, nvmlEventSet_t set) {
    struct sim *sim;
    struct sim_card *card;
    unsigned number;
    TRY(nvml_sim(&sim));
    TRY(nvml_whole_card(device, &card));
    TRY(nvml_card_number(device, &number));
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~(uint64_t)XID_CRITICAL_ERROR) return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    if (!set->types[number]) {
        set->told[number] = card->xid_count;
        for (unsigned one = 0; one < SIM_MAX_CARDS; one++)
            if (sim_card_is_instance(sim, one) && sim_card_whole(sim, one) == number)
                set->told[one] = sim->state->cards[one].xid_count;
    }
    set->types[number] |= types;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

/* Returns the oldest error that was not returned yet, skipping errors that the card no longer
 * keeps. The error of a MIG instance is reported for its card, with the instance's IDs. */
static bool take_event(struct sim *sim, unsigned number, nvmlEventSet_t set,
                       nvmlEventData_t *data) {
    const struct sim_card *card = &sim->state->cards[number];
    unsigned whole = sim_card_whole(sim, number);
    uint64_t count = card->xid_count;
    if (!(set->types[whole] & XID_CRITICAL_ERROR) || set->told[number] >= count) return false;
    if (set->told[number] + SIM_MAX_XIDS < count) set->told[number] = count - SIM_MAX_XIDS;
    uint64_t xid = card->xids[set->told[number]++ % SIM_MAX_XIDS];
    *data = (nvmlEventData_t){nvml_handle(whole), XID_CRITICAL_ERROR, xid, UINT32_MAX, UINT32_MAX};
    if (whole != number) {
        data->gpuInstanceId = (unsigned)card->gpu_instance;
        data->computeInstanceId = (unsigned)card->compute_instance;
    }
    return true;
}

static bool take_any(struct sim *sim, nvmlEventSet_t set, nvmlEventData_t *data) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (unsigned card = 0; card < sim->state->card_count && !found; card++)
        found = take_event(sim, card, set, data);
    pthread_mutex_unlock(&lock);
    return found;
}

static uint64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout) {
    const struct timespec pause = {0, SAMPLE_NS};
    struct sim *sim;
    TRY(nvml_sim(&sim));
    if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint64_t end = milliseconds() + timeout;;) {
        if (take_any(sim, set, data)) return NVML_SUCCESS;
        if (milliseconds() >= end) return NVML_ERROR_TIMEOUT;
        nanosleep(&pause, NULL);
    }
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout) {
    return nvmlEventSetWait_v2(set, data, timeout);
}
