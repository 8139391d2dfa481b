#include "memory/lazy_code.h"

#include "base/clock.h"
#include "base/numbers.h"
#include "base/sys.h"
#include "lookup/resolve.h"
#include "memory/cached_memory.h"
#include "memory/charge.h"
#include "memory/pages.h"
#include "region/agent_heartbeat.h"
#include "region/dead_processes.h"

#define MANY (MIZAR_BYTES_MAX / PAGE_BYTES) /* uses; a higher count was overwritten by a program */

#define PATIENCE UINT64_C(1000000000) /* ns that one call of a program waits for the agent */
#define STEP 5000 /* us between two checks */

/* ---- whether code is loaded at first use ----------------------------------------------------- */

/* Drivers before CUDA 11.7 lack the function, and load all code with its module. */
bool lazy_code_comes_late(void) {
    enum { EAGER = 1, LAZY };
    static int known;
    int mode = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (mode) return mode == LAZY;
    CUresult result = REAL(cuModuleGetLoadingMode)(&mode);
    if (result == CUDA_ERROR_NOT_FOUND) mode = EAGER;
    else if (result != CUDA_SUCCESS) return false; /* not known yet, such as before cuInit */
    __atomic_store_n(&known, mode, __ATOMIC_RELAXED);
    return mode == LAZY;
}

bool lazy_code_is_watched(struct regions *regions, int card) {
    return lazy_code_comes_late() && agent_lives(regions, card, clock_now());
}

/* ---- room for code --------------------------------------------------------------------------- */

/* While this count is not 0, the agent cannot know whether NVML's figure includes the uses. */
void lazy_code_change_begun(struct regions *regions, int card, int by) {
    struct mizar_usage_slot *slot = &regions->usage->slots[regions->process->slot];
    __atomic_fetch_add(&slot->code_begun[card], (uint32_t)by, __ATOMIC_RELEASE);
}

/* Counts uses, and returns how many there have been. */
static uint64_t count(struct regions *regions, int card, unsigned times) {
    uint64_t *uses = &regions->usage->cards[card].code_uses;
    return __atomic_add_fetch(uses, times, __ATOMIC_SEQ_CST);
}

void lazy_code_count(struct regions *regions, int card) {
    if (card != CARD_NONE && lazy_code_comes_late()) count(regions, card, 1);
}

void lazy_code_release(struct regions *regions, int card, uint64_t bytes, uint64_t doubtful) {
    unsigned room = (unsigned)(pages_whole(doubtful) / MIZAR_CODE_PAGE) * MIZAR_CODE_PER_PAGE;
    if (!room || !lazy_code_comes_late()) return charge_release(regions, card, bytes);
    lazy_code_change_begun(regions, card, (int)room);
    count(regions, card, room);
    charge_release(regions, card, bytes);
    lazy_code_change_begun(regions, card, -(int)room);
}

/*
 * Whether the account, the code that may have been loaded since NVML was asked, and `more` uses fit
 * the limit.
 */
static bool fits(struct regions *regions, int card, unsigned more) {
    uint64_t room = regions_code_bytes(regions, regions_code_unseen(regions, card) + more);
    /* Read after code_seen, since the agent writes it first. */
    uint64_t told = regions_memory_told(regions, card);
    return charge_total(regions, card) + told + room <= regions_memory_total(regions, card);
}

/*
 * Counts the uses if they fit. If other processes take the room meanwhile, fails, and the uses stay
 * counted until the agent's next figures.
 */
static bool claim(struct regions *regions, int card, unsigned uses) {
    if (!fits(regions, card, uses)) return false;
    lazy_code_change_begun(regions, card, (int)uses);
    count(regions, card, uses);
    if (fits(regions, card, 0)) return true;
    lazy_code_change_begun(regions, card, -(int)uses);
    return false;
}

static bool claim_after_settling(struct regions *regions, int card, unsigned uses) {
    dead_processes_settle(regions);
    return claim(regions, card, uses) ||
           (cached_memory_release(regions, card) && claim(regions, card, uses));
}

static bool is_seen(struct regions *regions, int card, uint64_t number) {
    uint64_t seen = __atomic_load_n(&regions->limits->live[card].code_seen, __ATOMIC_ACQUIRE);
    return seen >= number;
}

/*
 * Waits for STEP. Returns false without waiting if the agent is dead or PATIENCE has been used up.
 */
static bool waits_on(struct regions *regions, int card, uint64_t *waited) {
    uint64_t began = clock_now();
    if (*waited >= PATIENCE || !agent_lives(regions, card, began)) return false;
    sys_sleep(STEP);
    *waited += clock_now() - began;
    return true;
}

/*
 * Waits for the agent's next figures, which may show that code took less than is reserved for it,
 * or that memory was freed.
 */
static bool claim_after_a_look(struct regions *regions, int card, unsigned uses, uint64_t *waited) {
    uint64_t asked = count(regions, card, 1);
    bool seen = false;
    while (!seen && waits_on(regions, card, waited)) {
        seen = is_seen(regions, card, asked);
        if (claim(regions, card, uses)) return true;
    }
    return false;
}

bool lazy_code_claim(struct regions *regions, int card, unsigned uses, uint64_t *waited) {
    return claim(regions, card, uses) || claim_after_settling(regions, card, uses) ||
           claim_after_a_look(regions, card, uses, waited);
}

bool lazy_code_admit(struct regions *regions, int card, uint64_t bytes, uint64_t *waited) {
    unsigned uses = (unsigned)(pages_whole(bytes) / MIZAR_CODE_PAGE) * MIZAR_CODE_PER_PAGE;
    if (!uses) return true;
    uint64_t counted = count(regions, card, uses);
    bool fit = fits(regions, card, 0);
    if (!fit) dead_processes_settle(regions), cached_memory_release(regions, card);
    while (!(fit = fit || fits(regions, card, 0)) && !is_seen(regions, card, counted) &&
           waits_on(regions, card, waited))
        continue;
    return fit || fits(regions, card, 0);
}

/* ---- allocations ----------------------------------------------------------------------------- */

/*
 * Whether that many bytes might fit once the agent has asked NVML. Its figure of memory beyond the
 * account may become 0: what it reports now may be memory of a process that has died.
 */
static bool look_may_help(struct regions *regions, int card, uint64_t bytes) {
    uint64_t unseen = regions_code_unseen(regions, card);
    if (!unseen || unseen >= MANY) return false;
    return charge_total(regions, card) + PAGE_BYTES + bytes <= regions_memory_total(regions, card);
}

bool lazy_code_await_look(struct regions *regions, int card, uint64_t bytes, uint64_t *waited) {
    if (card == CARD_NONE || !look_may_help(regions, card, bytes)) return false;
    uint64_t counted = regions_code_uses(regions, card);
    while (!is_seen(regions, card, counted) && waits_on(regions, card, waited)) continue;
    return true;
}
