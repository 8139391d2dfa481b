/*
 * Moments on the card's own time line, by CUDA events: recorded into streams, and told in ns of
 * CLOCK_MONOTONIC once the card has passed them. One set for each context; the caller holds its
 * lock. Stamps are numbers; 0 is none.
 */
#ifndef MIZAR_STAMPS_H
#define MIZAR_STAMPS_H

#include <stdbool.h>

#include "base/cuda_api.h"

#define STAMPS_MAX 256

struct stamp {
    CUevent event;
    uint64_t recorded_at; /* when the event was handed to the driver */
    uint64_t at;          /* when the card passed it; 0: not known yet */
    uint32_t serial;      /* which use of the event this is */
    uint32_t users;       /* 0: may be used again */
};

struct stamps {
    struct stamp all[STAMPS_MAX];
    uint32_t serial; /* of the stamp that was recorded last */
    uint64_t base_at; /* when the card passed `base`, as exactly as is known */
    uint16_t base;    /* what other stamps are measured from */
};

/*
 * Records a moment; 0 when the driver refuses or there are too many. It lasts while it has users,
 * and some time longer: whoever is none remembers its serial.
 */
uint16_t stamps_record(struct stamps *stamps, CUstream stream, uint64_t now);

uint16_t stamps_keep(struct stamps *stamps, uint16_t stamp);
void stamps_drop(struct stamps *stamps, uint16_t stamp);

enum stamp_state { STAMP_AHEAD, STAMP_PASSED, STAMP_BROKEN };

/* Whether the card has passed it; then `at` says when. */
enum stamp_state stamps_look(struct stamps *stamps, uint16_t stamp, uint64_t now);

static inline uint64_t stamps_at(const struct stamps *stamps, uint16_t stamp) {
    return stamps->all[stamp].at;
}

#endif
