/* What each process of the container did on a card of late. */
#ifndef MIZAR_ACTIVITY_H
#define MIZAR_ACTIVITY_H

#include "region/regions.h"

struct activity {
    unsigned pid; /* as the container sees it */
    unsigned percent; /* of the card's time */
    uint64_t stamp; /* us since the epoch: when that was found */
};

typedef void activity_found(void *list, unsigned index, const struct activity *activity);

/*
 * Those of which something was found after `since` (us since the epoch): the number; the first `room`
 * of them are put into the list. Only where the card's time is metered. A figure is of 1/6 s or more:
 * mostly of the time since somebody last asked in this process. May wait for those 1/6 s when nobody
 * did for long.
 */
unsigned activity_list(struct regions *regions, int card, uint64_t since, activity_found *found,
                       void *list, unsigned room);

/* How many there may be. */
unsigned activity_most(struct regions *regions);

#endif
