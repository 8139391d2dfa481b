#include "memory/lent_card.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/sys.h"
#include "lookup/cards.h"
#include "lookup/relax.h"

/* The most ms that an allocation waits, if the limits file says nothing: longer than a borrower takes to end. */
#define WAIT_MOST 3000
#define STEP 1000 /* us between two checks */

static bool is_lent(const struct regions *regions, int card) {
    return card != CARD_NONE && load_acquire(&regions->limits->live[card].borrowed);
}

void lent_card_tell(struct regions *regions, int card) {
    if (is_lent(regions, card))
        store_relaxed(&regions->usage->cards[card].compute.wanted_at, clock_now());
}

/*
 * Free bytes of the card; 0 if the driver cannot be asked, since no context of the card is current.
 */
static uint64_t free_bytes(struct regions *regions, int card) {
    CUdevice device;
    size_t left = 0, total = 0;
    bool here = REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS && cards_of_device(regions, device) == card;
    return here && RELAXED(cuMemGetInfo_v2, &left, &total) == CUDA_SUCCESS ? left : 0;
}

static uint64_t wait_most(const struct mizar_limits *limits) {
    uint32_t ms = load_relaxed(&limits->owner_wait_ms);
    return (ms ? ms : WAIT_MOST) * UINT64_C(1000000);
}

void lent_card_await(struct regions *regions, int card, uint64_t bytes) {
    if (__builtin_expect(!is_lent(regions, card), 1)) return;
    uint64_t until = clock_now() + wait_most(regions->limits);
    lent_card_tell(regions, card);
    while (is_lent(regions, card) && free_bytes(regions, card) <= bytes && clock_now() < until) {
        sys_sleep(STEP);
        lent_card_tell(regions, card);
    }
}
