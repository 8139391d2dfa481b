/* A card's memory according to NVML, from which the cost of a context is learned. */
#ifndef MIZAR_WHOLE_CARD_MEMORY_H
#define MIZAR_WHOLE_CARD_MEMORY_H

#include "region/regions.h"

/*
 * Sets *bytes to the bytes in use on the whole card. Returns false if there is no NVML, or it does
 * not know the card.
 */
bool nvml_memory_used(struct regions *regions, int card, uint64_t *bytes);

#endif
