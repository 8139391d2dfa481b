#include "time/present_share.h"

#include "base/atomics.h"
#include "base/numbers.h"
#include "region/agent_heartbeat.h"

/* Lowest share (basis points) of a container that is not paused, so that every wait ends. */
#define RATE_LEAST 100

static uint64_t weighted(uint64_t share, uint64_t all) {
    return all > share ? share * MIZAR_SHARE_FULL / all : MIZAR_SHARE_FULL;
}

/* Whether a live agent lends the card's time to the container, which has no share of its own. */
static bool lends(const struct mizar_limits_live *live, bool fresh) {
    return fresh && load_relaxed(&live->spare_share);
}

static bool is_paused(const struct mizar_limits_live *live, uint32_t mode, uint64_t share, bool fresh) {
    return mode == MIZAR_COMPUTE_STOPPED || (fresh && load_relaxed(&live->paused)) ||
           (mode == MIZAR_COMPUTE_SOFT && !share && !lends(live, fresh));
}

static uint64_t rate_of(const struct mizar_limits_live *live, uint32_t mode, uint64_t share,
                        bool fresh) {
    if (mode == MIZAR_COMPUTE_SOFT && fresh) share += load_relaxed(&live->spare_share);
    if (mode == MIZAR_COMPUTE_WEIGHTED && fresh && load_relaxed(&live->active_weight))
        share = weighted(share, load_relaxed(&live->active_weight));
    return smaller(larger(share, RATE_LEAST), MIZAR_SHARE_FULL);
}

uint64_t present_share(struct regions *regions, int card, uint32_t mode, uint64_t now) {
    const struct mizar_limits_live *live = &regions->limits->live[card];
    uint64_t share = load_relaxed(&regions->process->cards[card].core_share);
    bool fresh = agent_lives(regions, card, now);
    return is_paused(live, mode, share, fresh) ? 0 : rate_of(live, mode, share, fresh);
}
