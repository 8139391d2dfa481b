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
 * A card that the limits do not name counts as fully used; its true total is shown, so that no
 * program divides by zero. Free memory is never more than the card has left, since neighbours may
 * have taken it. With oversubscription, managed memory replaces what does not fit (stand_in.h), and
 * free memory is what calls that support this can take; other calls may fail earlier.
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
