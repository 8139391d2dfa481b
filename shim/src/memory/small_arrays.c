#include "memory/small_arrays.h"

#include "base/numbers.h"
#include "memory/charge.h"
#include "memory/estimates.h"
#include "memory/pages.h"

/*
 * The pages to charge for all small arrays. The driver takes a new page for a small array only if
 * no other has room, so each page but the last was more than half full at some time. And no array
 * keeps more than one page.
 */
static uint64_t due(const struct process_small_arrays *shares) {
    return smaller(pages_whole(2 * shares->born) / PAGE_BYTES + shares->inherited, shares->alive);
}

static struct process_small_arrays *lock(struct regions *regions, int card) {
    lock_take(&regions->process->small_arrays_lock);
    return &regions->process->small_arrays[card];
}

/*
 * Updates the charged pages and releases the lock. Returns by how many pages the charge decreases.
 */
static int64_t unlock(struct regions *regions, int card, struct process_small_arrays *shares) {
    uint64_t before = shares->charged, now = due(shares);
    shares->charged = now;
    lock_release(&regions->process->small_arrays_lock);
    if (now > before) estimates_add(regions, card, (now - before) * PAGE_BYTES);
    return (int64_t)(before - now);
}

static void set_alive(struct process_small_arrays *shares, uint64_t count) {
    __atomic_store_n(&shares->alive, count, __ATOMIC_RELAXED);
    if (!count) shares->born = shares->inherited = 0;
}

bool small_arrays_add(struct regions *regions, int card, uint64_t bytes) {
    if (card == CARD_NONE || !charge_within_limit(regions, card, PAGE_BYTES)) return false;
    struct process_small_arrays *shares = lock(regions, card);
    set_alive(shares, shares->alive + 1);
    shares->born += bytes;
    if (!unlock(regions, card, shares)) charge_release(regions, card, PAGE_BYTES);
    return true;
}

void small_arrays_remove(struct regions *regions, int card) {
    struct process_small_arrays *shares = lock(regions, card);
    set_alive(shares, shares->alive - 1);
    estimates_release(regions, card, (uint64_t)unlock(regions, card, shares) * PAGE_BYTES);
}

bool small_arrays_inherit_page(struct regions *regions, int card) {
    if (!__atomic_load_n(&regions->process->small_arrays[card].alive, __ATOMIC_RELAXED)) return false;
    struct process_small_arrays *shares = lock(regions, card);
    if (shares->alive) shares->inherited++;
    return unlock(regions, card, shares) != 0;
}
