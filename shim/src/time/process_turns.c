#include "time/process_turns.h"

#include "base/atomics.h"
#include "base/numbers.h"

#define US UINT64_C(1000)
/* ns that a turn lasts. */
#define TURN (8000 * US)
/* ns after a turn in which a waiting process may take the next one before the holder renews it. */
#define YIELD (300 * US)
/* ns between two checks whether the holder of the turn has become idle. */
#define LOOK (1000 * US)
/* Bits of the turn's word that name the holder. */
#define HOLDER_BITS 16

struct turn {
    uint32_t holder; /* slot + 1; 0: no process */
    uint64_t until;  /* ns of CLOCK_MONOTONIC */
};

/* A turn that lasts too long has no holder: a program has overwritten the word. */
static struct turn decode(uint64_t word, uint64_t now) {
    struct turn turn = {(uint32_t)(word & ((1u << HOLDER_BITS) - 1)), (word >> HOLDER_BITS) * US};
    if (turn.holder > MIZAR_SLOT_MAX || turn.until > now + 2 * TURN) turn.holder = 0;
    return turn;
}

static bool take(uint64_t *word, uint64_t seen, uint32_t self, uint64_t now) {
    uint64_t next = (now + TURN) / US << HOLDER_BITS | self;
    return __atomic_compare_exchange_n(word, &seen, next, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

/*
 * Whether the holder of the turn has no work. If it only waits until the container's share permits
 * its next piece, it keeps the turn; it is idle if it has not launched YIELD after that moment. A
 * process that has just taken the turn is about to launch.
 */
static bool is_idle(struct regions *regions, int card, const struct turn *turn,
                    const struct ask *ask) {
    const struct mizar_usage_slot *slot = &regions->usage->slots[turn->holder - 1];
    const struct mizar_slot_card *work = &slot->cards[card];
    if (ask->now < turn->until - TURN + LOOK) return false;
    bool done = !load_relaxed(&work->open_since) || load_relaxed(&work->open_until) + YIELD <= ask->now;
    return done && ask->paid + YIELD <= ask->now;
}

/*
 * Whether the holder may renew its turn: not while another process wants the next one, until that
 * process is late by YIELD. It has announced about when it will come.
 */
static bool may_renew(const struct mizar_compute *compute, const struct turn *turn, uint64_t now) {
    uint64_t wanted = smaller(load_relaxed(&compute->turn_wanted), turn->until + 3 * TURN);
    return wanted + LOOK < now || now >= larger(turn->until, wanted) + YIELD;
}

void turns_want(struct regions *regions, int card, uint64_t at) {
    struct mizar_compute *compute = &regions->usage->cards[card].compute;
    uint32_t holder = decode(load_relaxed(&compute->turn), at).holder;
    if (holder != regions->process->slot + 1)
        __atomic_store_n(&compute->turn_wanted, at, __ATOMIC_RELAXED);
}

bool turns_take(struct regions *regions, int card, const struct ask *ask, uint64_t *again) {
    struct mizar_compute *compute = &regions->usage->cards[card].compute;
    uint64_t word = load_relaxed(&compute->turn), now = ask->now;
    uint32_t self = regions->process->slot + 1;
    struct turn turn = decode(word, now);
    if (regions_slots_used(regions->usage) < 2) return true;
    if (turn.holder == self && now < turn.until) return true;
    *again = turn.until + YIELD;
    if (turn.holder == self && !may_renew(compute, &turn, now)) return false;
    if (!turn.holder || turn.holder == self || now >= turn.until ||
        is_idle(regions, card, &turn, ask))
        return take(&compute->turn, word, self, now) || (*again = now, false);
    *again = turn.until < now + LOOK ? turn.until : now + LOOK;
    turns_want(regions, card, *again);
    return false;
}
