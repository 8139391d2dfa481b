#include "time/stamps.h"

#include "lookup/cards.h"
#include "lookup/relax.h"

#define REBASE_NS UINT64_C(30000000000) /* a float of milliseconds is exact to 2 us up to here */

/* The one whose last use is longest ago, nearly: round and round. */
static uint16_t free_stamp(struct stamps *stamps) {
    for (uint32_t i = 1; i < STAMPS_MAX; i++) {
        uint16_t number = (uint16_t)(1 + (stamps->serial + i) % (STAMPS_MAX - 1));
        if (!stamps->all[number].users) return number;
    }
    return 0;
}

static bool make_event(struct stamp *stamp, CUstream stream) {
    if (!cards_enter(cards_context(stream))) return false;
    CUresult result = RELAXED(cuEventCreate, &stamp->event, CU_EVENT_DEFAULT);
    cards_leave();
    return result == CUDA_SUCCESS;
}

/* Events are made once and used again. */
static bool has_event(struct stamp *stamp, CUstream stream) {
    return stamp->event || make_event(stamp, stream);
}

uint16_t stamps_record(struct stamps *stamps, CUstream stream, uint64_t now) {
    uint16_t number = free_stamp(stamps);
    struct stamp *stamp = &stamps->all[number];
    if (!number || !has_event(stamp, stream)) return 0;
    if (RELAXED(cuEventRecord, stamp->event, stream) != CUDA_SUCCESS) return 0;
    stamp->serial = ++stamps->serial;
    stamp->at = 0;
    stamp->recorded_at = now;
    return number;
}

uint16_t stamps_keep(struct stamps *stamps, uint16_t stamp) {
    if (stamp) stamps->all[stamp].users++;
    return stamp;
}

void stamps_drop(struct stamps *stamps, uint16_t stamp) {
    if (stamp) stamps->all[stamp].users--;
}

static void set_base(struct stamps *stamps, uint16_t stamp) {
    stamps_drop(stamps, stamps->base);
    stamps->base = stamps_keep(stamps, stamp);
    stamps->base_at = stamps->all[stamp].at;
}

/*
 * The card passed the stamp between its recording and now, `elapsed` after the base: which says
 * between which bounds the base itself lies. They close in on the truth with every stamp.
 */
static void correct_base(struct stamps *stamps, const struct stamp *stamp, uint64_t elapsed,
                         uint64_t now) {
    if (stamps->base_at + elapsed < stamp->recorded_at)
        stamps->base_at = stamp->recorded_at - elapsed;
    if (stamps->base_at + elapsed > now) stamps->base_at = now - elapsed;
}

static bool measure(struct stamps *stamps, uint16_t number, uint64_t now) {
    struct stamp *stamp = &stamps->all[number];
    float ms = 0;
    if (!stamps->base) {
        stamp->at = stamp->recorded_at;
        set_base(stamps, number);
        return true;
    }
    if (RELAXED(cuEventElapsedTime, &ms, stamps->all[stamps->base].event, stamp->event) != CUDA_SUCCESS)
        return false;
    int64_t elapsed = (int64_t)((double)ms * 1e6);
    if (elapsed >= 0) correct_base(stamps, stamp, (uint64_t)elapsed, now);
    stamp->at = stamps->base_at + (uint64_t)elapsed;
    if (elapsed > (int64_t)REBASE_NS) set_base(stamps, number);
    return true;
}

enum stamp_state stamps_look(struct stamps *stamps, uint16_t number, uint64_t now) {
    struct stamp *stamp = &stamps->all[number];
    if (stamp->at) return STAMP_PASSED;
    CUresult result = RELAXED(cuEventQuery, stamp->event);
    if (result == CUDA_ERROR_NOT_READY) return STAMP_AHEAD;
    if (result != CUDA_SUCCESS || !measure(stamps, number, now)) return STAMP_BROKEN;
    return STAMP_PASSED;
}
