/* Helpers of the NVML wrappers. */
#ifndef MIZAR_NVML_H
#define MIZAR_NVML_H

#include "base/cuda_api.h"
#include "region/regions.h"

/*
 * To be called first by a wrapper. Sets *regions to NULL and returns SUCCESS if there is no Mizar
 * here. Needs no process slot.
 */
nvmlReturn_t nvml_enter(struct regions **regions);

/* The card of the device, found by UUID, or CARD_NONE. */
int nvml_card(struct regions *regions, nvmlDevice_t device);

/*
 * The container's process with that PID, which is one of the container's PID namespace; NULL if
 * there is none.
 */
const struct mizar_usage_slot *nvml_own(struct regions *regions, unsigned pid);

/*
 * Whether the card's time is metered for the container, so that its utilization is known from what
 * it was charged.
 */
bool nvml_metered(struct regions *regions, int card);

#endif
