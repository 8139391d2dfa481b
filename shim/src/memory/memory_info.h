/* The memory of a card as it is shown to a container's programs, in bytes. */
#ifndef MIZAR_MEMORY_INFO_H
#define MIZAR_MEMORY_INFO_H

#include "region/regions.h"

struct memory_info {
    uint64_t total, used, free;
};

/* `total` and `free`: bytes of the whole card, as the driver reports them. */
struct memory_info memory_info(struct regions *regions, int card, uint64_t total, uint64_t free);

#endif
