/* Queries about a single card. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "nvml.h"

static nvmlReturn_t copy_text(nvmlDevice_t device, size_t at, char *buffer, unsigned room) {
    struct sim_card *card;
    TRY(nvml_card(device, &card));
    const char *text = (const char *)card + at;
    if (!buffer) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= room) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned room) {
    return copy_text(device, offsetof(struct sim_card, name), name, room);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned room) {
    return copy_text(device, offsetof(struct sim_card, uuid), uuid, room);
}

/* ---- memory --------------------------------------------------------------------------------- */

typedef struct {
    uint64_t total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned version;
    uint64_t total, reserved, free, used;
} nvmlMemory_v2_t;

/* Returns the card's memory usage, at most nvml_stale_ns old. */
static struct sim_usage recent_usage(struct sim *sim, unsigned card) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct sim_usage read[SIM_MAX_CARDS];
    static uint64_t read_at[SIM_MAX_CARDS];
    pthread_mutex_lock(&lock);
    uint64_t now = sim_now(sim);
    if (!read_at[card] || now - read_at[card] >= sim->state->cards[card].nvml_stale_ns) {
        read[card] = sim_card_usage(sim, card);
        read_at[card] = now;
    }
    struct sim_usage usage = read[card];
    pthread_mutex_unlock(&lock);
    return usage;
}

static nvmlReturn_t usage_of(nvmlDevice_t device, struct sim_usage *usage) {
    struct sim *sim;
    struct sim_card *card;
    TRY(nvml_sim(&sim));
    TRY(nvml_card(device, &card));
    unsigned number = (unsigned)(card - sim->state->cards);
    *usage = recent_usage(sim, number);
    for (int at = -1; (at = sim_next_instance(sim, number, at)) >= 0;) {
        uint64_t used = recent_usage(sim, (unsigned)at).used;
        usage->used += used;
        usage->free -= used;
    }
    return NVML_SUCCESS;
}

/* The first version counts the memory that the driver reserves as used. */
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct sim_usage usage;
    TRY(usage_of(device, &usage));
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    *memory = (nvmlMemory_t){usage.total, usage.free, usage.used + usage.reserved};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct sim_usage usage;
    TRY(usage_of(device, &usage));
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != (sizeof *memory | 2 << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = usage.total;
    memory->reserved = usage.reserved;
    memory->free = usage.free;
    memory->used = usage.used;
    return NVML_SUCCESS;
}

/* ---- place on the bus ----------------------------------------------------------------------- */

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    char busId[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId, reserved[4];
} nvmlPciInfo_v2_t;

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    struct sim_card *card;
    unsigned number;
    TRY(nvml_whole_card(device, &card));
    TRY(nvml_card_number(device, &number));
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned bus = (number + 1) & 0xff;
    *pci = (nvmlPciInfo_t){.bus = bus, .pciDeviceId = 0x20b010de, .pciSubSystemId = 0x134f10de};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", bus);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", bus);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci) {
    nvmlPciInfo_t whole;
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    TRY(nvmlDeviceGetPciInfo_v3(device, &whole));
    memset(pci, 0, sizeof *pci);
    memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci) {
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

/* ---- single figures ------------------------------------------------------------------------- */

#define FIGURE(name, type, worth)                             \
    API nvmlReturn_t name(nvmlDevice_t device, type *value) { \
        struct sim_card *card;                                \
        TRY(nvml_whole_card(device, &card));                        \
        if (!value) return NVML_ERROR_INVALID_ARGUMENT;       \
        *value = (type)(worth);                               \
        return NVML_SUCCESS;                                  \
    }

FIGURE(nvmlDeviceGetMinorNumber, unsigned, card->minor)
FIGURE(nvmlDeviceGetPowerUsage, unsigned, card->power_milliwatts)
FIGURE(nvmlDeviceGetEnforcedPowerLimit, unsigned, 400000)
FIGURE(nvmlDeviceGetPowerManagementLimit, unsigned, 400000)
FIGURE(nvmlDeviceGetNumGpuCores, unsigned, card->sm_count * 64)
FIGURE(nvmlDeviceGetMemoryBusWidth, unsigned, card->bus_bits)
FIGURE(nvmlDeviceGetBrand, int, 14)
FIGURE(nvmlDeviceGetArchitecture, unsigned, 7)
FIGURE(nvmlDeviceGetComputeMode, int, 0)
FIGURE(nvmlDeviceGetPersistenceMode, int, 1)
FIGURE(nvmlDeviceGetDisplayActive, int, 0)
FIGURE(nvmlDeviceGetDisplayMode, int, 0)
FIGURE(nvmlDeviceGetPerformanceState, int, 0)

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (sensor || !celsius) return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = (unsigned)card->temperature_celsius;
    return NVML_SUCCESS;
}

/* Only the threshold at which the card slows down is known. */
API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int kind,
                                                   unsigned *celsius) {
    enum { SLOWDOWN = 1 };
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (!celsius) return NVML_ERROR_INVALID_ARGUMENT;
    if (kind != SLOWDOWN) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = (unsigned)card->slowdown_celsius;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
                                           unsigned *uncorrected, unsigned *pending,
                                           unsigned *failed) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (!corrected || !uncorrected || !pending || !failed) return NVML_ERROR_INVALID_ARGUMENT;
    *corrected = *uncorrected = *pending = 0;
    *failed = (unsigned)card->remap_failed;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (!active || link >= card->nvlinks) return NVML_ERROR_INVALID_ARGUMENT;
    *active = link >= card->nvlinks_down;
    return NVML_SUCCESS;
}

/* All links lead to a switch. */
API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                     nvmlPciInfo_t *pci) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (!pci || link >= card->nvlinks) return NVML_ERROR_INVALID_ARGUMENT;
    *pci = (nvmlPciInfo_t){.bus = 0xf0, .pciDeviceId = 0x1af110de};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:F0:00.0");
    snprintf(pci->busId, sizeof pci->busId, "00000000:F0:00.0");
    return NVML_SUCCESS;
}

/* NVML_TOPOLOGY_NODE: cards of one NUMA node; NVML_TOPOLOGY_SYSTEM: of several. */
API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, int *level) {
    enum { INTERNAL = 0, NODE = 40, SYSTEM = 50 };
    struct sim_card *first, *second;
    TRY(nvml_whole_card(one, &first));
    TRY(nvml_whole_card(other, &second));
    if (!level) return NVML_ERROR_INVALID_ARGUMENT;
    *level = first == second ? INTERNAL : first->numa == second->numa ? NODE : SYSTEM;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)card->compute_major;
    *minor = (int)card->compute_minor;
    return NVML_SUCCESS;
}

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCKS };

static nvmlReturn_t clock_of(nvmlDevice_t device, int type, unsigned *mhz) {
    struct sim_card *card;
    TRY(nvml_whole_card(device, &card));
    if (type < 0 || type >= CLOCKS || !mhz) return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = (unsigned)(type == CLOCK_MEMORY ? card->memory_clock_mhz : card->clock_mhz);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *mhz) {
    return clock_of(device, type, mhz);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *mhz) {
    return clock_of(device, type, mhz);
}
