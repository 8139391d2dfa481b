/* What the card itself says, by NVML: to learn what a context costs. */
#ifndef MIZAR_NVML_MEMORY_H
#define MIZAR_NVML_MEMORY_H

#include "region/regions.h"

/* Bytes in use on the whole card. False: there is no NVML, or it does not know the card. */
bool nvml_memory_used(struct regions *regions, int card, uint64_t *bytes);

#endif
