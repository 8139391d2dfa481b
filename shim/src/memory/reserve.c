#include "memory/reserve.h"

#include "memory/account.h"
#include "memory/borrowed.h"
#include "memory/lazy_code.h"
#include "memory/reclaim.h"

bool reserve_at_once(struct regions *regions, int card, uint64_t bytes) {
    if (account_reserve(regions, card, bytes)) return true;
    return reclaim_unused(regions, card) && account_reserve(regions, card, bytes);
}

static bool after_a_look(struct regions *regions, int card, uint64_t bytes) {
    uint64_t waited = 0;
    return lazy_code_await_look(regions, card, bytes, &waited) && account_reserve(regions, card, bytes);
}

bool reserve_patiently(struct regions *regions, int card, uint64_t bytes) {
    if (!reserve_at_once(regions, card, bytes) && !after_a_look(regions, card, bytes)) return false;
    borrowed_await(regions, card, bytes);
    return true;
}
