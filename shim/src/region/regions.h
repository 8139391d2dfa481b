/* The two mapped files, the limits as last read, and whether there is a Mizar here at all. */
#ifndef MIZAR_REGIONS_PRIVATE_H
#define MIZAR_REGIONS_PRIVATE_H

#include <stdbool.h>

#include "base/numbers.h"
#include "region/process_state.h"
#include "mizar_regions.h"

#define CARD_NONE (-1)

enum regions_mode {
    REGIONS_INERT = 1, /* no Mizar here: the shim does nothing */
    REGIONS_ACTIVE,    /* limits and usage are mapped and valid */
};

struct regions {
    enum regions_mode mode;
    const struct mizar_limits *limits;
    struct mizar_usage *usage;
    struct process *process;
};

extern struct regions *regions_current; /* NULL until the files were opened once */

/* Opens and publishes the regions; see regions_get(). */
struct regions *regions_open(void);

/*
 * The regions, inert or active. NULL if there is a Mizar but its files cannot be used: then CUDA is
 * refused, and every call tries again, since the cause may go away.
 */
static inline struct regions *regions_get(void) {
    struct regions *regions = __atomic_load_n(&regions_current, __ATOMIC_ACQUIRE);
    return __builtin_expect(regions != NULL, 1) ? regions : regions_open();
}

/* Whether there is no Mizar here. Reads no file. */
bool regions_inert(void);

/* Opens `usage` again, for a lock of the caller's own. Returns a descriptor, or -errno. */
int regions_open_usage(void);

/* Reads the limits again. Returns false if they were never read successfully. */
bool regions_refresh(struct regions *regions);

/*
 * Reads the limits again if they have changed. Returns false if they were never read successfully.
 */
static inline bool regions_fresh(struct regions *regions) {
    struct process *process = regions->process;
    uint32_t seq = __atomic_load_n(&regions->limits->seq, __ATOMIC_ACQUIRE);
    bool known = __atomic_load_n(&process->limits_known, __ATOMIC_ACQUIRE);
    if (__builtin_expect(known && seq == __atomic_load_n(&process->limits_seq, __ATOMIC_RELAXED), 1))
        return true;
    return regions_refresh(regions);
}

/* The number of process slots that may have been used: those from this one on never were. */
static inline unsigned regions_slots_used(const struct mizar_usage *usage) {
    return smaller(__atomic_load_n(&usage->slot_high, __ATOMIC_RELAXED), MIZAR_SLOT_MAX);
}

/* The index of the card with that UUID, or CARD_NONE. */
int regions_card(struct regions *regions, const char *uuid);

/*
 * Writes the card's UUID to `uuid`, MIZAR_UUID_SIZE bytes. Returns false if there is no such card.
 */
bool regions_uuid(struct regions *regions, int card, char *uuid);

/* The container's memory limit on the card, in bytes; 0 if none is known. */
static inline uint64_t regions_memory_total(struct regions *regions, int card) {
    if (card == CARD_NONE || !regions_fresh(regions)) return 0;
    return __atomic_load_n(&regions->process->cards[card].limit, __ATOMIC_RELAXED);
}

/* Bytes that the container holds according to NVML beyond its own account. */
static inline uint64_t regions_memory_told(struct regions *regions, int card) {
    uint64_t told =
        __atomic_load_n(&regions->limits->live[card].unaccounted_bytes, __ATOMIC_RELAXED);
    return smaller(told, MIZAR_BYTES_MAX);
}

/* The number of first uses of code on the card so far. */
static inline uint64_t regions_code_uses(struct regions *regions, int card) {
    return __atomic_load_n(&regions->usage->cards[card].code_uses, __ATOMIC_ACQUIRE);
}

/*
 * The number of first uses of code that the agent's NVML figure may not include yet: lazy_code.h.
 */
static inline uint64_t regions_code_unseen(struct regions *regions, int card) {
    uint64_t seen = __atomic_load_n(&regions->limits->live[card].code_seen, __ATOMIC_ACQUIRE);
    uint64_t uses = regions_code_uses(regions, card);
    return uses > seen ? smaller(uses - seen, MIZAR_BYTES_MAX / MIZAR_CODE_PAGE) : 0;
}

/*
 * The most bytes of the card that this many uses may have taken, in pages, which processes do not
 * share.
 */
static inline uint64_t regions_code_bytes(struct regions *regions, uint64_t uses) {
    uint64_t processes = __atomic_load_n(&regions->usage->slot_high, __ATOMIC_RELAXED);
    uint64_t more = smaller(uses, smaller(processes, MIZAR_SLOT_MAX));
    uint64_t pages = (uses + MIZAR_CODE_PER_PAGE - 1) / MIZAR_CODE_PER_PAGE;
    return (pages + (more ? more - 1 : 0)) * MIZAR_CODE_PAGE;
}

/* Bytes reserved for code: at least a page once code was used, so that the next use finds room. */
static inline uint64_t regions_code_room(struct regions *regions, int card) {
    if (!regions_code_uses(regions, card)) return 0;
    return regions_code_bytes(regions, larger(regions_code_unseen(regions, card), 1));
}

/* Bytes of the limit that are not in the container's account but are not available either. */
static inline uint64_t regions_memory_outside(struct regions *regions, int card) {
    uint64_t room = regions_code_room(regions, card); /* must be read first: lazy_code.c */
    return room + regions_memory_told(regions, card);
}

/* The most bytes that the container's account of the card may have now. */
static inline uint64_t regions_memory_limit(struct regions *regions, int card) {
    uint64_t total = regions_memory_total(regions, card);
    uint64_t outside = total ? regions_memory_outside(regions, card) : 0;
    return total > outside ? total - outside : 0;
}

#endif
