#include "region/memory_ledger.h"

#include "base/wide.h"

#define BYTES_LOW_BITS 21
#define SLOT_BITS 10

_Static_assert(MIZAR_SLOT_MAX == 1u << SLOT_BITS, "a slot number fills its bits: any value is one");

static struct ledger_view unpack(struct wide word) {
    uint64_t high = word.lo >> (32 + SLOT_BITS);
    uint64_t low = word.hi & ((UINT64_C(1) << BYTES_LOW_BITS) - 1);
    return (struct ledger_view){
        .total = word.hi >> BYTES_LOW_BITS,
        .slot_bytes = high << BYTES_LOW_BITS | low,
        .seq = (uint32_t)word.lo,
        .slot = (uint32_t)(word.lo >> 32) & (MIZAR_SLOT_MAX - 1),
    };
}

static struct wide pack(struct ledger_view view) {
    uint64_t low = view.slot_bytes & ((UINT64_C(1) << BYTES_LOW_BITS) - 1);
    return (struct wide){
        .lo = view.slot_bytes >> BYTES_LOW_BITS << (32 + SLOT_BITS) |
              (uint64_t)view.slot << 32 | view.seq,
        .hi = view.total << BYTES_LOW_BITS | low,
    };
}

/* The next sequence number. It is never 0, which marks a slot for which nothing was recorded. */
static uint32_t after(uint32_t seq) {
    return seq == UINT32_MAX ? 1 : seq + 1;
}

/*
 * Reads both words as of one instant, as wide_load() does for the ledger. `seq` changes with every
 * write, so it is the word that is read twice.
 */
static struct mizar_held load_held(const struct mizar_held *held) {
    struct mizar_held view;
    uint64_t again;
    do {
        view.seq = __atomic_load_n(&held->seq, __ATOMIC_ACQUIRE);
        view.bytes = __atomic_load_n(&held->bytes, __ATOMIC_ACQUIRE);
        again = __atomic_load_n(&held->seq, __ATOMIC_RELAXED);
    } while (again != view.seq);
    return view;
}

static bool unchanged(const struct mizar_ledger *ledger, struct wide seen) {
    return __atomic_load_n(&ledger->lo, __ATOMIC_RELAXED) == seen.lo;
}

/*
 * Writes the ledger's statement about its slot into that slot, on behalf of the process that made
 * the statement and may be dead. Returns false if the ledger has changed meanwhile; then the thread
 * that changed it has done this. A late write does no harm: it succeeds only if `held` still has
 * the pair read here, so nothing was written since, because a seq never occurs twice.
 */
static bool record(struct mizar_usage *usage, unsigned card, struct wide seen) {
    struct ledger_view view = unpack(seen);
    struct mizar_held *held = &usage->slots[view.slot].held[card];
    struct mizar_held old = load_held(held);
    if (old.seq == view.seq) return true;
    if (!unchanged(&usage->cards[card].ledger, seen)) return false;
    wide_swap(held, (struct wide){old.bytes, old.seq}, (struct wide){view.slot_bytes, view.seq});
    return true;
}

/*
 * Bytes that the slot holds at the instant `seen`. *sure is set to false if the ledger has changed
 * meanwhile.
 */
static uint64_t bytes_at(struct mizar_usage *usage, unsigned card, unsigned slot, struct wide seen,
                         bool *sure) {
    struct ledger_view view = unpack(seen);
    *sure = true;
    if (view.slot == slot) return view.slot_bytes;
    uint64_t bytes = load_held(&usage->slots[slot].held[card]).bytes;
    *sure = unchanged(&usage->cards[card].ledger, seen);
    return bytes;
}

static bool put(struct mizar_usage *usage, unsigned card, struct wide seen, unsigned slot,
                uint64_t slot_bytes, uint64_t total) {
    struct ledger_view next = {total, slot_bytes, after((uint32_t)seen.lo), slot};
    if (unpack(seen).slot != slot && !record(usage, card, seen)) return false;
    return wide_swap(&usage->cards[card].ledger, seen, pack(next));
}

static uint64_t at_most(uint64_t value, uint64_t ceiling) {
    return value < ceiling ? value : ceiling;
}

struct ledger_view ledger_view(struct mizar_usage *usage, unsigned card) {
    return unpack(wide_load(&usage->cards[card].ledger));
}

bool ledger_take(struct mizar_usage *usage, unsigned card, unsigned slot, uint64_t bytes,
               uint64_t limit) {
    for (;;) {
        struct wide seen = wide_load(&usage->cards[card].ledger);
        uint64_t total = unpack(seen).total;
        bool sure;
        uint64_t held = bytes_at(usage, card, slot, seen, &sure);
        if (!sure) continue;
        if (bytes > MIZAR_BYTES_MAX - total || bytes > MIZAR_BYTES_MAX - held) return false;
        if (limit != LEDGER_NO_LIMIT && total + bytes > limit) return false;
        if (put(usage, card, seen, slot, held + bytes, total + bytes)) return true;
    }
}

void ledger_give(struct mizar_usage *usage, unsigned card, unsigned slot, uint64_t bytes) {
    for (;;) {
        struct wide seen = wide_load(&usage->cards[card].ledger);
        uint64_t total = unpack(seen).total;
        bool sure;
        uint64_t held = bytes_at(usage, card, slot, seen, &sure);
        if (!sure) continue;
        /* The two bounds only matter if a program has overwritten the region. */
        uint64_t back = at_most(at_most(bytes, held), total);
        if (put(usage, card, seen, slot, held - back, total - back)) return;
    }
}

uint64_t ledger_slot_bytes(struct mizar_usage *usage, unsigned card, unsigned slot) {
    for (;;) {
        bool sure;
        uint64_t bytes =
            bytes_at(usage, card, slot, wide_load(&usage->cards[card].ledger), &sure);
        if (sure) return bytes;
    }
}
