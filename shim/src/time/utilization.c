/*
 * The last look at a card's account, in one shared word, so that whoever asks next has a span to
 * measure over: per cent plus one (8 bits, lowest; 0: not known yet) | time (28 bits, ms) | GPU time
 * charged until then (28 bits, 100 us).
 */
#include "time/utilization.h"

#include <time.h>

#include "base/atomics.h"
#include "base/clock.h"
#include "base/sys.h"
#include "time/budget.h"

#define BITS 28
#define MASK ((UINT64_C(1) << BITS) - 1)
#define SPAN_LEAST 167 /* ms; as long as NVIDIA's shortest sampling period */
#define SPAN_MOST 5000 /* of a longer one nobody would say "of late" */
#define TRIES 4
#define MS 1000000u
#define UNIT 100000u /* ns of GPU time */

struct look {
    unsigned percent; /* plus one; 0: not known */
    uint64_t time, busy;
};

static uint64_t pack(struct look look) {
    return look.percent | (look.time & MASK) << 8 | (look.busy & MASK) << (8 + BITS);
}

static struct look unpack(uint64_t word) {
    return (struct look){word & 0xff, word >> 8 & MASK, word >> (8 + BITS) & MASK};
}

/* What was charged, and what a process has on the card that was not charged for yet. */
static uint64_t busy_time(struct regions *regions, int card, uint64_t now) {
    const struct mizar_compute *compute = &regions->usage->cards[card].compute;
    uint64_t charged_to = load_relaxed(&compute->busy_until);
    uint64_t open = budget_open_time(regions, card, charged_to, now, MIZAR_SLOT_MAX);
    return load_relaxed(&compute->charged_ns) + open;
}

static struct look look_now(struct regions *regions, int card) {
    uint64_t now = clock_now();
    return (struct look){0, now / MS, busy_time(regions, card, now) / UNIT};
}

static unsigned percent(struct look from, struct look to) {
    uint64_t span = (to.time - from.time) & MASK, busy = (to.busy - from.busy) & MASK;
    uint64_t result = busy > MASK / 2 ? 0 : (busy * UNIT * 100 / MS + span / 2) / span;
    return result > 100 ? 100 : (unsigned)result;
}

/* True: `found` is the answer. False: come again after *wait ms. */
static bool answer(struct regions *regions, int card, unsigned *found, unsigned *wait) {
    uint64_t *word = &regions->usage->cards[card].compute.load, seen = load_relaxed(word);
    struct look last = unpack(seen), now = look_now(regions, card);
    uint64_t age = (now.time - last.time) & MASK;
    bool young = seen && age < SPAN_LEAST;
    *found = last.percent - 1;
    if (young && last.percent) return true;
    *wait = young ? SPAN_LEAST - (unsigned)age : SPAN_LEAST;
    if (young) return false;
    bool known = seen && age <= SPAN_MOST;
    if (known) now.percent = 1 + (*found = percent(last, now));
    __atomic_compare_exchange_n(word, &seen, pack(now), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return known;
}

/* All cards at once, since whoever asks for one mostly asks for the others next. */
static void look_at_others(struct regions *regions, int asked) {
    unsigned found, wait, cards = regions->process->card_count;
    for (unsigned card = 0; card < cards && card < MIZAR_CARD_MAX; card++)
        if ((int)card != asked) answer(regions, (int)card, &found, &wait);
}

unsigned utilization_charged(struct regions *regions, int card) {
    unsigned found = 0, wait = 0;
    for (int i = 0; i < TRIES; i++) {
        if (answer(regions, card, &found, &wait)) return found > 100 ? 100 : found;
        if (!i) look_at_others(regions, card);
        const struct timespec span = {0, (long)wait * MS};
        SYS(SYS_nanosleep, &span, NULL);
    }
    return 0;
}
