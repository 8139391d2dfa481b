/*
 * Accounting of processes over their lives. Where the card's time is metered, the container knows
 * that by itself, of those which live; else the driver says it, of those which it knows.
 */
#include <time.h>

#include "base/atomics.h"
#include "lookup/resolve.h"
#include "nvml/nvml.h"
#include "region/ledger.h"
#include "region/slots.h"

struct life {
    unsigned percent;   /* of the card's time */
    uint64_t start_time; /* us since the epoch */
};

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static struct life life_of(const struct mizar_usage_slot *own, int card) {
    uint64_t now = now_us(), start = own->attached_ns / 1000, age = now > start ? now - start : 1;
    uint64_t percent = load_relaxed(&own->cards[card].gpu_time_ns) / 10 / age;
    return (struct life){percent < 100 ? (unsigned)percent : 100, start};
}

static bool uses_card(struct regions *regions, int card, unsigned slot) {
    const struct mizar_usage_slot *entry = &regions->usage->slots[slot];
    return __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) == MIZAR_STATE_READY &&
           (load_relaxed(&entry->cards[card].gpu_time_ns) ||
            ledger_slot_bytes(regions->usage, (unsigned)card, slot));
}

/* ---- who ---- */

static nvmlReturn_t living_pids(struct regions *regions, int card, unsigned *count, unsigned *pids) {
    unsigned room = pids ? *count : 0;
    *count = 0;
    slots_settle_sometimes(regions);
    for (unsigned slot = 0; slot < slots_used(regions->usage); slot++) {
        if (!uses_card(regions, card, slot)) continue;
        if (*count < room) pids[*count] = regions->usage->slots[slot].pid;
        ++*count;
    }
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t own_pids(struct regions *regions, nvmlDevice_t device, unsigned *count,
                             unsigned *pids) {
    unsigned own = 0;
    nvmlReturn_t result = REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    if (result != NVML_SUCCESS || !pids) return result;
    for (unsigned i = 0; i < *count; i++)
        if (nvml_own(regions, pids[i])) pids[own++] = pids[i];
    *count = own;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count,
                                                unsigned *pids) {
    struct regions *regions;
    unsigned none = 0;
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    if (!regions || !count) return REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    int card = nvml_card(regions, device);
    if (!nvml_metered(regions, card)) return own_pids(regions, device, count, pids);
    result = nvml_would_answer(REAL(nvmlDeviceGetAccountingPids)(device, &none, NULL));
    return result == NVML_SUCCESS ? living_pids(regions, card, count, pids) : result;
}

/* ---- what ---- */

/*
 * Whether the container's account answers for that process, in *life; else *result is the answer.
 * `real` is the driver's.
 */
static bool knows_life(struct regions *regions, nvmlDevice_t device, unsigned pid,
                       nvmlReturn_t real, struct life *life, nvmlReturn_t *result) {
    const struct mizar_usage_slot *own = nvml_own(regions, pid);
    int card = nvml_card(regions, device);
    *result = own ? real : NVML_ERROR_NOT_FOUND;
    if (!own || !nvml_metered(regions, card) || nvml_would_answer(real) != NVML_SUCCESS) return false;
    *result = NVML_SUCCESS;
    *life = life_of(own, card);
    return true;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid,
                                                 nvmlAccountingStats_t *stats) {
    struct regions *regions;
    struct life life;
    nvmlAccountingStats_t theirs = {0};
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    if (!regions || !stats) return REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);
    nvmlReturn_t real = REAL(nvmlDeviceGetAccountingStats)(device, pid, &theirs);
    if (knows_life(regions, device, pid, real, &life, &result))
        theirs = (nvmlAccountingStats_t){.gpu = life.percent,
                                         .memory = (unsigned)NVML_NOT_AVAILABLE,
                                         .most_bytes = NVML_NOT_AVAILABLE,
                                         .start_time = life.start_time,
                                         .running = 1};
    if (result == NVML_SUCCESS) *stats = theirs;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device,
                                                    nvmlAccountingStats_v2_t *stats) {
    struct regions *regions;
    struct life life;
    nvmlReturn_t result = nvml_enter(&regions);
    if (result != NVML_SUCCESS) return result;
    if (!regions || !stats) return REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
    nvmlAccountingStats_v2_t theirs = *stats;
    nvmlReturn_t real = REAL(nvmlDeviceGetAccountingStats_v2)(device, &theirs);
    if (knows_life(regions, device, stats->pid, real, &life, &result))
        theirs = (nvmlAccountingStats_v2_t){.pid = stats->pid,
                                            .running = 1,
                                            .gpu = life.percent,
                                            .memory = (unsigned)NVML_NOT_AVAILABLE,
                                            .most_bytes = NVML_NOT_AVAILABLE,
                                            .start_time = life.start_time};
    if (result == NVML_SUCCESS) *stats = theirs;
    return result;
}
