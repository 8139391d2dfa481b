#include "region/agent_heartbeat.h"

#include "base/atomics.h"

/* ns without a heartbeat after which the node agent counts as dead. */
#define STALE INT64_C(1000000000)

/* In a new container, the agent counts as alive for STALE before its first heartbeat. */
bool agent_lives(struct regions *regions, int card, uint64_t now) {
    struct process_card *own = &regions->process->cards[card];
    uint32_t beat = load_relaxed(&regions->limits->live[card].beat);
    if (beat != load_relaxed(&own->beat) || !load_relaxed(&own->beat_at)) {
        __atomic_store_n(&own->beat, beat, __ATOMIC_RELAXED);
        store_relaxed(&own->beat_at, now);
    }
    /* Another thread may have seen a beat after `now` was read. */
    return (int64_t)(now - load_relaxed(&own->beat_at)) < STALE;
}
