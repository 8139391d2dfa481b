#include "memory/memory_info.h"

#include "base/numbers.h"
#include "memory/charge.h"
#include "region/dead_processes.h"

static uint64_t plus(uint64_t a, uint64_t b) {
    return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t used_of(struct regions *regions, int card) {
    dead_processes_settle_sometimes(regions);
    return plus(charge_total(regions, card), regions_memory_outside(regions, card));
}

/*
 * A card that the limits don't name is all used: its total stays true, so that nobody divides by
 * zero. Free is never more than the card has left, since neighbours may have been promised more
 * than there is; unless managed memory stands in for what does not fit. Then it is what the calls
 * that have such a stand-in (stand_in.h) can take; for those that have none, the card ends sooner.
 */
struct memory_info memory_info(struct regions *regions, int card, uint64_t total, uint64_t free) {
    uint64_t limit = regions_memory_total(regions, card);
    if (card == CARD_NONE || !limit) return (struct memory_info){total, total, 0};
    bool oversubscribe =
        __atomic_load_n(&regions->process->cards[card].oversubscribe, __ATOMIC_RELAXED);
    uint64_t shown = oversubscribe ? limit : smaller(limit, total);
    uint64_t used = smaller(used_of(regions, card), shown);
    uint64_t left = shown - used;
    return (struct memory_info){shown, used, oversubscribe ? left : smaller(left, free)};
}
