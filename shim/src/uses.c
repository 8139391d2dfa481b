#include "uses.h"

#include "account.h"
#include "budget.h"
#include "cards.h"
#include "charge.h"
#include "relax.h"
#include "slots.h"
#include "sys.h"

#define SEEN_BITS 14
#define SEEN_MAX (1u << SEEN_BITS)

#define MANY (MIZAR_BYTES_MAX / PAGE_BYTES) /* uses: who says that there are so many has scribbled */

enum { PATIENCE = 8000, STEP = 5 }; /* milliseconds to wait for the agent: in all, between looks */

/* ---- what was used -------------------------------------------------------------------------------- */

#define GONE UINT64_MAX

/* By open addressing: entries come and turn into GONE, until all go at once. Wiped in a forked child. */
struct uses {
    struct {
        uint64_t key;
        const void *owner; /* a module or library, whose end makes the key another one's */
    } entries[SEEN_MAX];
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

static void forget_all(struct uses *uses) {
    for (unsigned i = 0; i < SEEN_MAX; i++)
        __atomic_store_n(&uses->entries[i].key, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&uses->count, 0, __ATOMIC_RELAXED);
}

static uint64_t hash(uint64_t key) {
    return key * UINT64_C(0x9e3779b97f4a7c15);
}

/* A library's kernel is another function in each context. */
static uint64_t key_of(const void *work) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    return hash((uintptr_t)context) ^ (uintptr_t)work;
}

/* The number of its entry, or of a free one. */
static unsigned place_of(struct uses *uses, uint64_t key) {
    unsigned place = (unsigned)(hash(key) >> (64 - SEEN_BITS));
    for (;; place = (place + 1) % SEEN_MAX) {
        uint64_t found = __atomic_load_n(&uses->entries[place].key, __ATOMIC_RELAXED);
        if (!found || found == key) return place;
    }
}

static bool is_known(struct regions *regions, uint64_t key) {
    struct uses *uses = __atomic_load_n(&regions->process->uses, __ATOMIC_ACQUIRE);
    return uses && __atomic_load_n(&uses->entries[place_of(uses, key)].key, __ATOMIC_RELAXED);
}

/* Of two threads that take the same place one remembers nothing: its use counts again. */
static void remember(struct regions *regions, uint64_t key, const void *owner) {
    struct uses *uses = uses_of(regions);
    if (!uses) return;
    if (__atomic_add_fetch(&uses->count, 1, __ATOMIC_RELAXED) > SEEN_MAX / 2) forget_all(uses);
    unsigned place = place_of(uses, key);
    __atomic_store_n(&uses->entries[place].owner, owner, __ATOMIC_RELAXED);
    __atomic_store_n(&uses->entries[place].key, key, __ATOMIC_RELEASE);
}

static struct uses *known_uses(void) {
    struct regions *regions = shim_known();
    return regions ? __atomic_load_n(&regions->process->uses, __ATOMIC_ACQUIRE) : NULL;
}

void uses_forget_all(void) {
    struct uses *uses = known_uses();
    if (uses) forget_all(uses);
}

void uses_forget(const void *owner) {
    struct uses *uses = known_uses();
    for (unsigned i = 0; uses && owner && i < SEEN_MAX; i++)
        if (__atomic_load_n(&uses->entries[i].key, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&uses->entries[i].owner, __ATOMIC_RELAXED) == owner)
            __atomic_store_n(&uses->entries[i].key, GONE, __ATOMIC_RELAXED);
}

static uint64_t key_named(const void *owner, const char *name) {
    uint64_t key = (uintptr_t)owner;
    for (; name && *name; name++) key = hash(key ^ (unsigned char)*name);
    return key_of((const void *)(uintptr_t)key) | 1; /* handles are even */
}

/* ---- whether code comes when it is used ------------------------------------------------------------- */

/* Drivers before CUDA 11.7 do not know the question: with them all code comes at once. */
static bool comes_late(void) {
    enum { EAGER = 1, LAZY };
    static int known;
    int mode = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (mode) return mode == LAZY;
    CUresult result = REAL(cuModuleGetLoadingMode)(&mode);
    if (result == CUDA_ERROR_NOT_FOUND) mode = EAGER;
    else if (result != CUDA_SUCCESS) return false; /* not yet: before cuInit, say */
    __atomic_store_n(&known, mode, __ATOMIC_RELAXED);
    return mode == LAZY;
}

/* ---- room for it ------------------------------------------------------------------------------------ */

/* The agent cannot know whether NVML tells of it. */
void uses_change_begun(struct regions *regions, int card, int by) {
    struct mizar_usage_slot *slot = &regions->usage->slots[regions->process->slot];
    __atomic_fetch_add(&slot->code_begun[card], (uint32_t)by, __ATOMIC_RELEASE);
}

/* Returns how many there are so far. */
static uint64_t count(struct regions *regions, int card, unsigned times) {
    uint64_t *uses = &regions->usage->cards[card].code_uses;
    return __atomic_add_fetch(uses, times, __ATOMIC_SEQ_CST);
}

void uses_count(struct regions *regions, int card) {
    if (card != CARD_NONE && comes_late()) count(regions, card, 1);
}

void uses_release(struct regions *regions, int card, uint64_t bytes) {
    unsigned room = (unsigned)(pages_whole(bytes) / PAGE_BYTES) * CODE_PER_PAGE;
    if (card == CARD_NONE || !comes_late()) return account_release(regions, card, bytes);
    uses_change_begun(regions, card, (int)room);
    count(regions, card, room);
    account_release(regions, card, bytes);
    uses_change_begun(regions, card, -(int)room);
}

/* Whether what is there, what may have come since NVML was asked, and so many more fit the limit. */
static bool fits(struct regions *regions, int card, unsigned more) {
    uint64_t room = regions_code_bytes(regions, regions_code_unseen(regions, card) + more);
    uint64_t told = regions_memory_told(regions, card); /* written before what was seen, so read after */
    return account_used(regions, card) + told + room <= regions_memory_total(regions, card);
}

/* Others may be faster; then it stays counted, until the next look. */
static bool claim(struct regions *regions, int card, unsigned uses) {
    if (!fits(regions, card, uses)) return false;
    uses_change_begun(regions, card, (int)uses);
    count(regions, card, uses);
    if (fits(regions, card, 0)) return true;
    uses_change_begun(regions, card, -(int)uses);
    return false;
}

static bool claim_after_settling(struct regions *regions, int card, unsigned uses) {
    int mode = relax_begin();
    slots_settle(regions);
    bool claimed = claim(regions, card, uses);
    if (!claimed && charge_give_unused_back(regions, card)) claimed = claim(regions, card, uses);
    relax_end(mode);
    return claimed;
}

static bool is_seen(struct regions *regions, int card, uint64_t number) {
    uint64_t seen = __atomic_load_n(&regions->limits->live[card].code_seen, __ATOMIC_ACQUIRE);
    return seen >= number;
}

/* Has waited a moment more for it, unless that is no use, or was too long. */
static bool waits_on(struct regions *regions, int card, int *waited) {
    if (*waited >= PATIENCE || !budget_agent_lives(regions, card, budget_now())) return false;
    sys_sleep(STEP * 1000);
    *waited += STEP;
    return true;
}

/* It may find that there is less than room is kept for, or that something has gone. */
static bool claim_after_a_look(struct regions *regions, int card, unsigned uses) {
    uint64_t asked = count(regions, card, 1);
    int waited = 0;
    bool seen = false;
    while (!seen && waits_on(regions, card, &waited)) {
        seen = is_seen(regions, card, asked);
        if (claim(regions, card, uses)) return true;
    }
    return false;
}

static CUresult begin(struct use *use, struct regions *regions, unsigned uses) {
    int card;
    if (cards_current(regions, &card) != CUDA_SUCCESS || card == CARD_NONE) return CUDA_SUCCESS;
    if (!claim(regions, card, uses) && !claim_after_settling(regions, card, uses) &&
        !claim_after_a_look(regions, card, uses))
        return CUDA_ERROR_OUT_OF_MEMORY;
    use->regions = regions;
    use->card = card;
    use->count = uses;
    return CUDA_SUCCESS;
}

static CUresult begin_one(struct use *use, struct regions *regions, uint64_t key, const void *owner) {
    *use = (struct use){.key = key, .owner = owner};
    return is_known(regions, key) ? CUDA_SUCCESS : begin(use, regions, 1);
}

CUresult uses_begin(struct use *use, struct regions *regions, const void *work) {
    *use = (struct use){0};
    if (!regions || !comes_late()) return CUDA_SUCCESS;
    return begin_one(use, regions, key_of(work), NULL);
}

CUresult uses_begin_named(struct use *use, struct regions *regions, const void *owner,
                          const char *name) {
    *use = (struct use){0};
    if (!regions || !comes_late()) return CUDA_SUCCESS;
    return begin_one(use, regions, key_named(owner, name), owner);
}

CUresult uses_end(const struct use *use, CUresult result) {
    if (!use->regions) return result;
    uses_change_begun(use->regions, use->card, -(int)use->count);
    if (result == CUDA_SUCCESS && use->key) remember(use->regions, use->key, use->owner);
    return result;
}

/* ---- many at once ----------------------------------------------------------------------------------- */

bool uses_note(struct regions *regions, const void *work) {
    if (!comes_late()) return false;
    uint64_t key = key_of(work);
    if (is_known(regions, key)) return false;
    remember(regions, key, NULL);
    return true;
}

CUresult uses_begin_noted(struct use *use, struct regions *regions, unsigned noted) {
    *use = (struct use){0};
    if (!regions || !noted) return CUDA_SUCCESS;
    CUresult result = begin(use, regions, noted);
    if (result != CUDA_SUCCESS) uses_forget_all();
    return result;
}

CUresult uses_end_noted(const struct use *use, CUresult result) {
    if (use->regions && result != CUDA_SUCCESS) uses_forget_all();
    return uses_end(use, result);
}

/* ---- allocations ------------------------------------------------------------------------------------ */

/* Whether so many bytes might be had if NVML had been asked. */
static bool look_may_help(struct regions *regions, int card, uint64_t bytes) {
    uint64_t unseen = regions_code_unseen(regions, card);
    if (regions_code_bytes(regions, unseen) <= PAGE_BYTES || unseen >= MANY) return false;
    uint64_t least = account_used(regions, card) + regions_memory_told(regions, card) + PAGE_BYTES;
    return least + bytes <= regions_memory_total(regions, card);
}

bool uses_await_look(struct regions *regions, int card, uint64_t bytes) {
    if (card == CARD_NONE || !look_may_help(regions, card, bytes)) return false;
    uint64_t counted = regions_code_uses(regions, card);
    int waited = 0;
    while (!is_seen(regions, card, counted) && waits_on(regions, card, &waited)) continue;
    return true;
}
