#include "uses.h"

#include <time.h>

#include "account.h"
#include "cards.h"
#include "charge.h"
#include "relax.h"
#include "slots.h"
#include "sys.h"

#define SEEN_BITS 14
#define SEEN_MAX (1u << SEEN_BITS)

enum { PATIENCE = 1000, STEP = 5 }; /* milliseconds to wait for the agent: in all, between looks */

/* ---- what was used -------------------------------------------------------------------------------- */

/* Handles, by open addressing: entries come, and go all at once. Wiped in a forked child. */
struct uses {
    uint64_t keys[SEEN_MAX];
    uint32_t count;
};

static struct uses *uses_of(struct regions *regions) {
    struct uses **place = &regions->process->uses, *none = NULL;
    struct uses *uses = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (uses) return uses;
    uses = process_map(sizeof *uses);
    if (!uses) return NULL;
    if (__atomic_compare_exchange_n(place, &none, uses, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return uses;
    sys_unmap(uses, sizeof *uses);
    return none;
}

static void forget(struct uses *uses) {
    for (unsigned i = 0; i < SEEN_MAX; i++) __atomic_store_n(&uses->keys[i], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&uses->count, 0, __ATOMIC_RELAXED);
}

static uint64_t hash(uint64_t key) {
    return key * UINT64_C(0x9e3779b97f4a7c15);
}

/* Its place, or a free one. */
static uint64_t *place_of(struct uses *uses, uint64_t key) {
    uint64_t place = hash(key) >> (64 - SEEN_BITS);
    for (;; place = (place + 1) % SEEN_MAX) {
        uint64_t found = __atomic_load_n(&uses->keys[place], __ATOMIC_RELAXED);
        if (!found || found == key) return &uses->keys[place];
    }
}

static bool is_known(struct regions *regions, const void *work) {
    struct uses *uses = __atomic_load_n(&regions->process->uses, __ATOMIC_ACQUIRE);
    return uses && __atomic_load_n(place_of(uses, (uintptr_t)work), __ATOMIC_RELAXED);
}

/* Of two threads that take the same place one remembers nothing: its use counts again. */
static void remember(struct regions *regions, const void *work) {
    struct uses *uses = uses_of(regions);
    if (!uses) return;
    if (__atomic_add_fetch(&uses->count, 1, __ATOMIC_RELAXED) > SEEN_MAX / 2) forget(uses);
    __atomic_store_n(place_of(uses, (uintptr_t)work), (uintptr_t)work, __ATOMIC_RELAXED);
}

void uses_forget(void) {
    struct regions *regions = shim_known();
    struct uses *uses = regions ? __atomic_load_n(&regions->process->uses, __ATOMIC_ACQUIRE) : NULL;
    if (uses) forget(uses);
}

const void *uses_named(const void *owner, const char *name) {
    uint64_t key = (uintptr_t)owner;
    for (; name && *name; name++) key = hash(key ^ (unsigned char)*name);
    return (const void *)(uintptr_t)(key | 1); /* handles are even */
}

/* ---- whether code comes when it is used ------------------------------------------------------------- */

/* Drivers before CUDA 11.7 do not know the question: with them all code comes at once. */
static bool comes_late(void) {
    enum { EAGER = 1, LAZY };
    static int known;
    int mode = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (mode) return mode == LAZY;
    if (REAL(cuModuleGetLoadingMode)(&mode) != CUDA_SUCCESS) mode = EAGER;
    __atomic_store_n(&known, mode, __ATOMIC_RELAXED);
    return mode == LAZY;
}

/* ---- room for it ------------------------------------------------------------------------------------ */

/* What has begun and not ended yet, of this process: the agent cannot know whether NVML tells of it. */
static void change_begun(struct regions *regions, int card, int by) {
    struct mizar_usage_slot *slot = &regions->usage->slots[regions->process->slot];
    __atomic_fetch_add(&slot->code_begun[card], (uint32_t)by, __ATOMIC_RELEASE);
}

static void count(struct regions *regions, int card, unsigned times) {
    __atomic_fetch_add(&regions->usage->cards[card].code_uses, times, __ATOMIC_RELEASE);
}

void uses_count(struct regions *regions, int card) {
    if (card != CARD_NONE && comes_late()) count(regions, card, 1);
}

/* Whether what is there and what may have come since NVML was asked are within the limit. */
static bool fits(struct regions *regions, int card) {
    uint64_t told = regions_memory_told(regions, card);
    uint64_t room = regions_code_bytes(regions, regions_code_unseen(regions, card));
    return account_used(regions, card) + told + room <= regions_memory_total(regions, card);
}

/* The agent may find that there is less than room is kept for. */
static bool fits_after_a_look(struct regions *regions, int card, unsigned own) {
    const struct timespec step = {0, STEP * 1000000};
    for (int waited = 0; waited < PATIENCE && regions_code_unseen(regions, card) > own;
         waited += STEP) {
        SYS(SYS_nanosleep, &step, NULL);
        if (fits(regions, card)) return true;
    }
    return false;
}

static bool make_room(struct regions *regions, int card, unsigned own) {
    int mode = relax_begin();
    bool made = slots_settle(regions) && fits(regions, card);
    made = made || (charge_give_unused_back(regions, card) && fits(regions, card));
    relax_end(mode);
    return made || fits_after_a_look(regions, card, own);
}

/* Where it is refused it stays counted: until the next look there is less room than there might be. */
static CUresult begin(struct use *use, struct regions *regions, unsigned count_of_uses) {
    int card;
    if (cards_current(regions, &card) != CUDA_SUCCESS || card == CARD_NONE) return CUDA_SUCCESS;
    change_begun(regions, card, (int)count_of_uses);
    count(regions, card, count_of_uses);
    if (!fits(regions, card) && !make_room(regions, card, count_of_uses)) {
        change_begun(regions, card, -(int)count_of_uses);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    use->regions = regions;
    use->card = card;
    use->count = count_of_uses;
    return CUDA_SUCCESS;
}

CUresult uses_begin(struct use *use, struct regions *regions, const void *work) {
    *use = (struct use){.work = work};
    if (!regions || is_known(regions, work) || !comes_late()) return CUDA_SUCCESS;
    return begin(use, regions, 1);
}

bool uses_note(struct regions *regions, const void *work) {
    if (is_known(regions, work) || !comes_late()) return false;
    remember(regions, work);
    return true;
}

CUresult uses_begin_noted(struct use *use, struct regions *regions, unsigned noted) {
    *use = (struct use){0};
    if (!regions || !noted) return CUDA_SUCCESS;
    CUresult result = begin(use, regions, noted);
    if (result != CUDA_SUCCESS) uses_forget();
    return result;
}

CUresult uses_end(const struct use *use, CUresult result) {
    if (!use->regions) return result;
    change_begun(use->regions, use->card, -(int)use->count);
    if (result == CUDA_SUCCESS && use->work) remember(use->regions, use->work);
    return result;
}
