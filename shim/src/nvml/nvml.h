/* What the NVML wrappers share. */
#ifndef MIZAR_NVML_H
#define MIZAR_NVML_H

#include "base/cuda_api.h"
#include "region/regions.h"

/* *regions is NULL, with SUCCESS, where there is no Mizar. Needs no process slot. */
nvmlReturn_t nvml_enter(struct regions **regions);

/* The device's card by UUID, or CARD_NONE. */
int nvml_card(struct regions *regions, nvmlDevice_t device);

/* The process of the container with that PID, as it is seen here; NULL: it is not one of its own. */
const struct mizar_usage_slot *nvml_own(struct regions *regions, unsigned pid);

/* Whether the container's processes are charged for the card's time, so that it knows what they do. */
bool nvml_metered(struct regions *regions, int card);

#endif
