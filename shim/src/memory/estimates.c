#include "memory/estimates.h"

#include "base/numbers.h"
#include "memory/lazy_code.h"

/* A value that changes when the agent has written new figures. It is never 0. */
static uint64_t news(struct regions *regions, int card) {
    const struct mizar_limits_live *live = &regions->limits->live[card];
    uint64_t seen = __atomic_load_n(&live->code_seen, __ATOMIC_ACQUIRE);
    return (scattered(seen, 64) ^ regions_memory_told(regions, card)) | 1;
}

void estimates_add(struct regions *regions, int card, uint64_t bytes) {
    if (card == CARD_NONE) return;
    struct process_card *own = &regions->process->cards[card];
    lock_take(&regions->process->estimates_lock);
    if (!own->estimates_news) own->estimates_news = news(regions, card);
    own->estimated += bytes;
    lock_release(&regions->process->estimates_lock);
}

/*
 * How many of the released bytes may have hidden code: at most the estimates that existed at the
 * agent's last figures, each counted once.
 */
static uint64_t doubtful(struct regions *regions, int card, uint64_t bytes) {
    struct process_card *own = &regions->process->cards[card];
    lock_take(&regions->process->estimates_lock);
    uint64_t now = news(regions, card);
    if (own->estimates_news != now) own->estimates_doubted = own->estimated;
    own->estimates_news = now;
    uint64_t doubted = smaller(bytes, own->estimates_doubted);
    own->estimates_doubted -= doubted;
    own->estimated -= smaller(bytes, own->estimated);
    lock_release(&regions->process->estimates_lock);
    return doubted;
}

void estimates_release(struct regions *regions, int card, uint64_t bytes) {
    if (card == CARD_NONE || !bytes) return;
    lazy_code_release(regions, card, bytes, doubtful(regions, card, bytes));
}
