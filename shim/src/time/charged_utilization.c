/*
 * The last sample of a card's utilization, in one shared word: percent plus one (lowest 8 bits; 0:
 * not known yet) | time (28 bits, ms) | GPU time charged until then (28 bits, 100 us). A process
 * samples when it charges time, and not only when it is asked, so that the first question has a
 * span to measure over.
 */
#include "time/charged_utilization.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "time/container_budget.h"

#define BITS 28
#define MASK ((UINT64_C(1) << BITS) - 1)
#define SPAN_LEAST 167 /* ms between two samples; as long as NVIDIA's shortest sampling period */
#define MS 1000000u
#define UNIT 100000u /* ns of GPU time */

struct look {
    unsigned percent;    /* plus one; 0: not known */
    uint64_t time, busy; /* in ms, and in UNIT */
};

static uint64_t pack(struct look look) {
    return look.percent | (look.time & MASK) << 8 | (look.busy & MASK) << (8 + BITS);
}

static struct look unpack(uint64_t word) {
    return (struct look){word & 0xff, word >> 8 & MASK, word >> (8 + BITS) & MASK};
}

/* ns that were charged, and of announced work that was not charged yet. */
static uint64_t busy_time(struct regions *regions, int card, uint64_t now) {
    const struct mizar_compute *compute = &regions->usage->cards[card].compute;
    uint64_t charged_to = load_relaxed(&compute->busy_until);
    uint64_t open = budget_open_time(regions, card, charged_to, now, MIZAR_SLOT_MAX);
    return load_relaxed(&compute->charged_ns) + open;
}

static unsigned percent(struct look from, struct look to) {
    uint64_t span = (to.time - from.time) & MASK, busy = (to.busy - from.busy) & MASK;
    uint64_t result = busy > MASK / 2 ? 0 : (busy * UNIT * 100 / MS + span / 2) / span;
    return result > 100 ? 100 : (unsigned)result;
}

/* The last sample, or a new one if the last is SPAN_LEAST old. */
static struct look refresh(struct regions *regions, int card, uint64_t now) {
    uint64_t *word = &regions->usage->cards[card].compute.load, seen = load_relaxed(word);
    struct look last = unpack(seen);
    /* The last one may be of another thread, which read the clock later. */
    if (seen && ((now / MS - last.time + SPAN_LEAST) & MASK) < 2 * SPAN_LEAST) return last;
    struct look next = {0, now / MS, busy_time(regions, card, now) / UNIT};
    if (seen) next.percent = 1 + percent(last, next);
    swap_relaxed(word, &seen, pack(next));
    return next;
}

void utilization_note(struct regions *regions, int card, uint64_t now) {
    refresh(regions, card, now);
}

unsigned utilization_charged(struct regions *regions, int card) {
    unsigned known = refresh(regions, card, clock_now()).percent;
    return known > 100 ? 100 : known ? known - 1 : 0;
}
