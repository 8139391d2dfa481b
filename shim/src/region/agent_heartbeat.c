#include "region/agent_heartbeat.h"

#include "base/atomics.h"

/* ms without a heartbeat after which the node agent counts as dead, if the limits file says nothing. */
#define STALE 1000

static int64_t stale_after(const struct mizar_limits *limits) {
    uint32_t ms = load_relaxed(&limits->heartbeat_ms);
    return (ms ? ms : STALE) * INT64_C(1000000);
}

/* In a new container, the agent counts as alive for that long before its first heartbeat. */
bool agent_lives(struct regions *regions, int card, uint64_t now) {
    struct process_card *own = &regions->process->cards[card];
    uint32_t beat = load_relaxed(&regions->limits->live[card].beat);
    if (beat != load_relaxed(&own->beat) || !load_relaxed(&own->beat_at)) {
        __atomic_store_n(&own->beat, beat, __ATOMIC_RELAXED);
        store_relaxed(&own->beat_at, now);
    }
    /* Another thread may have seen a beat after `now` was read. */
    return (int64_t)(now - load_relaxed(&own->beat_at)) < stale_after(regions->limits);
}
