#include "time/activity.h"

#include <time.h>

#include "base/atomics.h"
#include "base/clock.h"
#include "base/sys.h"
#include "region/slots.h"
#include "time/budget.h"

#define MS UINT64_C(1000000)
#define SPAN_LEAST (167 * MS)  /* as long as NVIDIA's shortest sampling period */
#define SPAN_MOST (60000 * MS) /* of a longer one nobody would say "of late" */
#define TRIES 4

/* A process's account at some moment. Another generation of its slot is another process. */
struct account {
    uint64_t generation, busy;
};

/* The last look at all processes, and what each of them did between it and the one before. */
struct looks {
    uint64_t at;    /* ns of CLOCK_MONOTONIC; 0: nobody has looked yet */
    bool compared;  /* there was one before, and not long before */
    unsigned count; /* of those who did something */
    struct activity found[MIZAR_SLOT_MAX];
    struct account accounts[MIZAR_SLOT_MAX];
};

static uint64_t stamp_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static bool is_ready(const struct mizar_usage_slot *entry) {
    return __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) == MIZAR_STATE_READY;
}

/* What the process was charged, and what it has on the card that was not charged for yet. */
static struct account read_account(struct regions *regions, int card, unsigned slot, uint64_t now) {
    const struct mizar_usage_slot *entry = &regions->usage->slots[slot];
    const struct mizar_slot_card *work = &entry->cards[card];
    uint64_t charged_to = load_relaxed(&regions->usage->cards[card].compute.busy_until);
    if (!is_ready(entry)) return (struct account){0};
    return (struct account){entry->generation,
                            load_relaxed(&work->gpu_time_ns) + budget_open_part(work, charged_to, now)};
}

static uint64_t busy_between(struct account before, struct account now) {
    uint64_t known = before.generation == now.generation ? before.busy : 0;
    return now.busy > known ? now.busy - known : 0;
}

static unsigned percent(uint64_t busy, uint64_t span) {
    return busy >= span ? 100 : (unsigned)((busy * 100 + span / 2) / span);
}

static void compare(struct looks *looks, unsigned pid, uint64_t busy, uint64_t span, uint64_t stamp) {
    if (busy) looks->found[looks->count++] = (struct activity){pid, percent(busy, span), stamp};
}

static void look(struct regions *regions, int card, struct looks *looks, uint64_t now) {
    uint64_t span = now - looks->at, stamp = stamp_now();
    looks->compared = looks->at && span <= SPAN_MOST;
    looks->count = 0;
    for (unsigned slot = 0; slot < slots_used(regions->usage); slot++) {
        struct account account = read_account(regions, card, slot, now);
        uint64_t busy = busy_between(looks->accounts[slot], account);
        if (looks->compared) compare(looks, regions->usage->slots[slot].pid, busy, span, stamp);
        looks->accounts[slot] = account;
    }
    looks->at = now;
}

static struct looks *looks_of(struct process *process, int card) {
    if (!process->looks[card]) process->looks[card] = sys_map_wiped(sizeof **process->looks);
    return process->looks[card];
}

/* ns after which to come again; 0: what was found is of late. The caller holds the lock. */
static uint64_t refresh(struct regions *regions, int card) {
    struct looks *looks = looks_of(regions->process, card);
    uint64_t now = clock_now(), age = looks ? now - looks->at : 0;
    if (!looks) return 0;
    if (looks->at && age < SPAN_LEAST) return looks->compared ? 0 : SPAN_LEAST - age;
    look(regions, card, looks, now);
    return looks->compared ? 0 : SPAN_LEAST;
}

static unsigned tell(const struct looks *looks, uint64_t since, activity_found *found, void *list,
                     unsigned room) {
    unsigned count = 0;
    for (unsigned i = 0; looks && i < looks->count; i++) {
        if (looks->found[i].stamp <= since) continue;
        if (count < room) found(list, count, &looks->found[i]);
        count++;
    }
    return count;
}

/* All cards at once, since whoever asks for one mostly asks for the others next. */
static void look_at_others(struct regions *regions, int asked) {
    unsigned cards = regions->process->card_count;
    for (unsigned card = 0; card < cards && card < MIZAR_CARD_MAX; card++)
        if ((int)card != asked) refresh(regions, (int)card);
}

unsigned activity_list(struct regions *regions, int card, uint64_t since, activity_found *found,
                       void *list, unsigned room) {
    struct process *process = regions->process;
    unsigned count = 0;
    slots_settle_sometimes(regions);
    for (int i = 0; i < TRIES; i++) {
        lock_take(&process->looks_lock);
        uint64_t wait = refresh(regions, card);
        if (wait) look_at_others(regions, card);
        else count = tell(process->looks[card], since, found, list, room);
        lock_release(&process->looks_lock);
        if (!wait) break;
        const struct timespec span = {0, (long)wait};
        SYS(SYS_nanosleep, &span, NULL);
    }
    return count;
}

unsigned activity_most(struct regions *regions) {
    unsigned count = 0;
    slots_settle_sometimes(regions);
    for (unsigned slot = 0; slot < slots_used(regions->usage); slot++)
        count += is_ready(&regions->usage->slots[slot]);
    return count;
}
