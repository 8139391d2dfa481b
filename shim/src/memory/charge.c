#include "memory/charge.h"

#include "memory/pages.h"
#include "region/dead_processes.h"
#include "region/memory_ledger.h"

#define UNIT (UINT64_C(512))

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) & ~(unit - 1);
}

uint64_t charge_size(uint64_t bytes) {
    if (bytes > MIZAR_BYTES_MAX) return MIZAR_BYTES_MAX + 1; /* more than a ledger can grant */
    return round_up(bytes, bytes > SMALL_BYTES ? PAGE_BYTES : UNIT);
}

static uint64_t *own_bytes(struct regions *regions, int card) {
    return &regions->process->cards[card].bytes;
}

/*
 * Takes bytes if the ledger allows it. The process's own count is a second bound: even if a program
 * has overwritten the shared region, no single process exceeds the limit.
 */
static bool take(struct regions *regions, int card, uint64_t bytes, uint64_t limit) {
    uint64_t own = __atomic_add_fetch(own_bytes(regions, card), bytes, __ATOMIC_RELAXED);
    if (own <= limit && ledger_take(regions->usage, (unsigned)card, regions->process->slot, bytes, limit))
        return true;
    __atomic_sub_fetch(own_bytes(regions, card), bytes, __ATOMIC_RELAXED);
    return false;
}

static void note_refusal(struct regions *regions, int card) {
    struct mizar_usage_card *shared = &regions->usage->cards[card];
    uint64_t total = charge_total(regions, card);
    __atomic_fetch_add(&shared->refused, 1, __ATOMIC_RELAXED);
    if (total > __atomic_load_n(&shared->peak_bytes, __ATOMIC_RELAXED))
        __atomic_store_n(&shared->peak_bytes, total, __ATOMIC_RELAXED);
}

static __attribute__((noinline)) bool reserve_after_settling(struct regions *regions, int card,
                                                             uint64_t bytes) {
    dead_processes_settle(regions);
    if (take(regions, card, bytes, regions_memory_limit(regions, card))) return true;
    note_refusal(regions, card);
    return false;
}

/*
 * Whether the total exceeds the limit because code was used since `uses` was read, which lowers the
 * limit.
 */
static bool is_overtaken(struct regions *regions, int card, uint64_t uses) {
    if (__builtin_expect(regions_code_uses(regions, card) == uses, 1)) return false;
    return charge_total(regions, card) > regions_memory_limit(regions, card);
}

bool charge_within_limit(struct regions *regions, int card, uint64_t bytes) {
    if (card == CARD_NONE) return false;
    uint64_t uses = regions_code_uses(regions, card);
    if (!take(regions, card, bytes, regions_memory_limit(regions, card)))
        return reserve_after_settling(regions, card, bytes);
    if (!is_overtaken(regions, card, uses)) return true;
    charge_release(regions, card, bytes);
    return reserve_after_settling(regions, card, bytes);
}

void charge_force(struct regions *regions, int card, uint64_t bytes) {
    if (card == CARD_NONE) return;
    __atomic_add_fetch(own_bytes(regions, card), bytes, __ATOMIC_RELAXED);
    ledger_take(regions->usage, (unsigned)card, regions->process->slot, bytes, LEDGER_NO_LIMIT);
}

void charge_absent(struct regions *regions, int card, int64_t more) {
    if (card == CARD_NONE || !more) return;
    struct mizar_usage_slot *slot = &regions->usage->slots[regions->process->slot];
    __atomic_fetch_add(&slot->cards[card].absent_bytes, (uint64_t)more, __ATOMIC_SEQ_CST);
}

void charge_release(struct regions *regions, int card, uint64_t bytes) {
    if (card == CARD_NONE || !bytes) return;
    __atomic_sub_fetch(own_bytes(regions, card), bytes, __ATOMIC_RELAXED);
    ledger_give(regions->usage, (unsigned)card, regions->process->slot, bytes);
}

uint64_t charge_total(struct regions *regions, int card) {
    return ledger_view(regions->usage, (unsigned)card).total;
}
