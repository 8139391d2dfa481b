/* How much memory a container is told that a card has, and how much of it is free. */
#ifndef MIZAR_ANSWERS_H
#define MIZAR_ANSWERS_H

#include "region/regions.h"

struct answer {
    uint64_t total, used, free;
};

/* `total` and `free` are what the driver says of the whole card. */
struct answer answer_memory(struct regions *regions, int card, uint64_t total, uint64_t free);

#endif
