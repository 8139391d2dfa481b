/* How much memory a container is told that a card has, and how much of it is free. */
#ifndef MIZAR_MEMORY_INFO_H
#define MIZAR_MEMORY_INFO_H

#include "region/regions.h"

struct memory_info {
    uint64_t total, used, free;
};

/* `total` and `free` are what the driver says of the whole card. */
struct memory_info memory_info(struct regions *regions, int card, uint64_t total, uint64_t free);

#endif
