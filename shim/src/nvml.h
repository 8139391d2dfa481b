/* What the NVML wrappers share. */
#ifndef MIZAR_NVML_H
#define MIZAR_NVML_H

#include "cuda_api.h"
#include "regions.h"

/* *regions is NULL, with SUCCESS, where there is no Mizar. Needs no process slot. */
nvmlReturn_t nvml_enter(struct regions **regions);

/* The device's card by UUID, or CARD_NONE. */
int nvml_card(struct regions *regions, nvmlDevice_t device);

/* Whether a process with that PID, as this container sees it, is one of the container's own. */
bool nvml_own(struct regions *regions, unsigned pid);

#endif
