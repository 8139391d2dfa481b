#include "shares.h"

#include "account.h"
#include "pages.h"

#define UNIT UINT64_C(512)

_Static_assert(UNIT << (SHARE_SIZES - 1) == SMALL_BYTES, "the sizes go up to what is small");

/* How many live now, and at most since there were none: one word, changed together. */
struct crowd {
    uint32_t live, most;
};

static struct crowd unpack(uint64_t word) {
    return (struct crowd){(uint32_t)word, (uint32_t)(word >> 32)};
}

static uint64_t pack(struct crowd crowd) {
    return (uint64_t)crowd.most << 32 | crowd.live;
}

static unsigned size_of(uint64_t bytes) {
    unsigned size = 0;
    while (UNIT << size < bytes) size++;
    return size;
}

static uint64_t pages_bytes(unsigned size, uint32_t most) {
    return (((uint64_t)most * (UNIT << size)) + PAGE_BYTES - 1) & -PAGE_BYTES;
}

static bool swap(uint64_t *word, uint64_t *seen, struct crowd next) {
    return __atomic_compare_exchange_n(word, seen, pack(next), false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

bool shares_take(struct regions *regions, int card, uint64_t bytes) {
    unsigned size = size_of(bytes);
    if (card == CARD_NONE || !account_reserve(regions, card, PAGE_BYTES)) return false;
    uint64_t *word = &regions->process->shares[card][size];
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    struct crowd now, next;
    do {
        now = next = unpack(seen);
        if (++next.live > next.most) next.most = next.live;
    } while (!swap(word, &seen, next));
    if (pages_bytes(size, next.most) == pages_bytes(size, now.most))
        account_release(regions, card, PAGE_BYTES);
    return true;
}

void shares_give(struct regions *regions, int card, uint64_t bytes) {
    unsigned size = size_of(bytes);
    uint64_t *word = &regions->process->shares[card][size];
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    struct crowd now, next;
    do {
        now = next = unpack(seen);
        if (--next.live == 0) next.most = 0;
    } while (!swap(word, &seen, next));
    account_release(regions, card, pages_bytes(size, now.most) - pages_bytes(size, next.most));
}
