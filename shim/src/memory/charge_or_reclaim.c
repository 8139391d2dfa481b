#include "memory/charge_or_reclaim.h"

#include "memory/lent_card.h"
#include "memory/cached_memory.h"
#include "memory/charge.h"
#include "memory/lazy_code.h"

bool charge_or_reclaim(struct regions *regions, int card, uint64_t bytes) {
    if (charge_within_limit(regions, card, bytes)) return true;
    return cached_memory_release(regions, card) && charge_within_limit(regions, card, bytes);
}

static bool after_a_look(struct regions *regions, int card, uint64_t bytes) {
    uint64_t waited = 0;
    return lazy_code_await_look(regions, card, bytes, &waited) && charge_within_limit(regions, card, bytes);
}

bool charge_or_wait(struct regions *regions, int card, uint64_t bytes) {
    if (!charge_or_reclaim(regions, card, bytes) && !after_a_look(regions, card, bytes)) return false;
    lent_card_await(regions, card, bytes);
    return true;
}
