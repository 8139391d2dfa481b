#include "nvml/nvml.h"

#include "base/atomics.h"
#include "lookup/resolve.h"

nvmlReturn_t nvml_enter(struct regions **regions) {
    *regions = regions_get();
    if (!*regions) return NVML_ERROR_NO_PERMISSION;
    if ((*regions)->mode == REGIONS_INERT) *regions = NULL;
    return NVML_SUCCESS;
}

/*
 * A cache of the cards of devices, since to ask the driver for a UUID takes longer than the rest of
 * a wrapper. Entries are taken in order and never given to another device; `known` is one word, so
 * that readers always see a consistent pair.
 */
static struct known_device {
    nvmlDevice_t device;
    uint64_t known; /* limits_seq << 32 | card + 1; 0: nothing */
} known_devices[DEVICES_MAX];

/* The device's entry in the cache, or a new one; NULL: there are more devices than entries. */
static struct known_device *entry_of(nvmlDevice_t device) {
    for (unsigned i = 0; i < DEVICES_MAX; i++) {
        nvmlDevice_t there = NULL;
        if (__atomic_compare_exchange_n(&known_devices[i].device, &there, device, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
            there == device)
            return &known_devices[i];
    }
    return NULL;
}

static int ask_card(struct regions *regions, nvmlDevice_t device) {
    char uuid[96];
    if (REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid) != NVML_SUCCESS) return CARD_NONE;
    return regions_card(regions, uuid);
}

int nvml_card(struct regions *regions, nvmlDevice_t device) {
    if (!device || !regions_fresh(regions)) return CARD_NONE;
    struct known_device *entry = entry_of(device);
    if (!entry) return ask_card(regions, device);
    /*
     * Read before the UUID is asked for, so that an answer from before a change of the limits is
     * not cached under the new sequence number.
     */
    uint64_t seq = load_relaxed(&regions->process->limits_seq);
    uint64_t known = load_relaxed(&entry->known);
    if (known && known >> 32 == seq) return (int)(uint32_t)known - 1;
    int card = ask_card(regions, device);
    if (card != CARD_NONE) store_relaxed(&entry->known, seq << 32 | (uint32_t)(card + 1));
    return card;
}

const struct mizar_usage_slot *nvml_own(struct regions *regions, unsigned pid) {
    for (unsigned slot = 0; pid && slot < regions_slots_used(regions->usage); slot++) {
        struct mizar_usage_slot *entry = &regions->usage->slots[slot];
        if (__atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) == MIZAR_STATE_READY &&
            entry->pid == pid)
            return entry;
    }
    return NULL;
}

bool nvml_metered(struct regions *regions, int card) {
    return card != CARD_NONE && regions_fresh(regions) &&
           __atomic_load_n(&regions->process->cards[card].compute_mode, __ATOMIC_RELAXED) !=
               MIZAR_COMPUTE_NONE;
}
