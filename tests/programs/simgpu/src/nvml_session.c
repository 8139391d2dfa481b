/* nvmlInit, nvmlShutdown, and the devices that a session can see. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "nvml.h"
#include "harsh.h"

struct nvmlDevice_st {
    unsigned card;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim machine = {.fd = -1, .slot = -1};
static pid_t opened_by;
static int sessions;
static int count; /* number of devices, fixed at nvmlInit: a lost card keeps its index */
static struct nvmlDevice_st devices[SIM_MAX_CARDS];
static unsigned order[SIM_MAX_CARDS]; /* index -> card number */

/* Keeps the file open until the process ends: closing any descriptor of it would drop the slot lock
 * that libcuda may hold in the same process. A forked child opens its own. */
static nvmlReturn_t open_machine(void) {
    if (machine.state && opened_by == getpid()) return NVML_SUCCESS;
    if (sim_open(&machine, sim_path())) return NVML_ERROR_DRIVER_NOT_LOADED;
    opened_by = getpid();
    return NVML_SUCCESS;
}

static void list_devices(void) {
    count = 0;
    for (unsigned card = 0; card < SIM_MAX_CARDS; card++) devices[card].card = card;
    for (unsigned card = 0; card < machine.state->card_count; card++)
        if (!sim_card_is_instance(&machine, card) && sim_card_visible(&machine, card) &&
            !sim_card_lost(&machine, card))
            order[count++] = card;
}

static nvmlReturn_t init(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = open_machine();
    if (!result && sessions++ == 0) list_devices();
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nvml_sim(struct sim **sim) {
    if (!sessions) return NVML_ERROR_UNINITIALIZED;
    if (sim) *sim = &machine;
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_card_number(nvmlDevice_t device, unsigned *number) {
    TRY(nvml_sim(NULL));
    if (device < devices || device >= devices + machine.state->card_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *number = device->card;
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_card(nvmlDevice_t device, struct sim_card **card) {
    unsigned number;
    TRY(nvml_card_number(device, &number));
    if (sim_card_lost(&machine, number)) return NVML_ERROR_GPU_IS_LOST;
    *card = &machine.state->cards[number];
    harsh_spend(&machine, (*card)->nvml_ns, (*card)->nvml_spread_ns);
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_whole_card(nvmlDevice_t device, struct sim_card **card) {
    TRY(nvml_card(device, card));
    return (*card)->parent ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvml_undivided_card(nvmlDevice_t device, struct sim_card **card) {
    TRY(nvml_whole_card(device, card));
    return (*card)->divided ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlDevice_t nvml_handle(unsigned card) {
    return &devices[card];
}

API nvmlReturn_t nvmlInit(void) {
    return init();
}

API nvmlReturn_t nvmlInit_v2(void) {
    return init();
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return init();
}

API nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = sessions ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (sessions) sessions--;
    pthread_mutex_unlock(&lock);
    return result;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *devices_seen) {
    TRY(nvml_sim(NULL));
    if (!devices_seen) return NVML_ERROR_INVALID_ARGUMENT;
    *devices_seen = (unsigned)count;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *devices_seen) {
    return nvmlDeviceGetCount_v2(devices_seen);
}

static nvmlReturn_t give_handle(unsigned card, nvmlDevice_t *device) {
    if (sim_card_lost(&machine, card)) return NVML_ERROR_GPU_IS_LOST;
    *device = nvml_handle(card);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    TRY(nvml_sim(NULL));
    if (!device || index >= (unsigned)count) return NVML_ERROR_INVALID_ARGUMENT;
    return give_handle(order[index], device);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    TRY(nvml_sim(NULL));
    if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        if (strcasecmp(machine.state->cards[order[i]].uuid, uuid) == 0)
            return give_handle(order[i], device);
    for (int i = 0; i < count; i++)
        for (int at = -1; (at = sim_next_instance(&machine, order[i], at)) >= 0;)
            if (strcasecmp(machine.state->cards[at].uuid, uuid) == 0)
                return give_handle((unsigned)at, device);
    return NVML_ERROR_NOT_FOUND;
}

/* "00000000:01:00.0" and the shorter "0000:01:00.0" name the same card. */
static nvmlReturn_t by_bus_id(const char *id, nvmlDevice_t *device) {
    char tail[16];
    TRY(nvml_sim(NULL));
    if (!id || !device) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        unsigned bus = order[i] + 1;
        snprintf(tail, sizeof tail, "0000:%02X:00.0", bus);
        size_t length = strlen(id);
        if (length >= 12 && strcasecmp(id + length - 12, tail) == 0)
            return give_handle(order[i], device);
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
    return by_bus_id(id, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) {
    return by_bus_id(id, device);
}

/* A MIG instance has an index on its card. */
API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    unsigned card, before = 0;
    TRY(nvml_card_number(device, &card));
    if (sim_card_is_instance(&machine, card)) {
        int at = -1;
        while ((at = sim_next_instance(&machine, sim_card_whole(&machine, card), at)) >= 0 &&
               at < (int)card)
            before++;
        *index = before;
        return NVML_SUCCESS;
    }
    for (int i = 0; i < count; i++)
        if (order[i] == card) *index = (unsigned)i;
    return NVML_SUCCESS;
}

static nvmlReturn_t copy_text(const char *text, char *buffer, unsigned room) {
    if (!buffer) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= room) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned room) {
    TRY(nvml_sim(NULL));
    return copy_text(machine.state->driver_version, version, room);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned room) {
    char own[48] = "13.";
    TRY(nvml_sim(NULL));
    return copy_text(strncat(own, machine.state->driver_version, 32), version, room);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    TRY(nvml_sim(NULL));
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int)machine.state->cuda_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

API const char *nvmlErrorString(nvmlReturn_t error) {
    switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}
