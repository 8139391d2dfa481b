/*
 * Moments on the card's own time line, by CUDA events: recorded into streams, and told in ns of
 * CLOCK_MONOTONIC once the card has passed them. One set for each context; the caller holds its
 * lock. Events are numbers; 0 is none.
 */
#ifndef MIZAR_GPU_EVENTS_H
#define MIZAR_GPU_EVENTS_H

#include <stdbool.h>

#include "base/cuda_api.h"

#define GPU_EVENTS_MAX 256

struct gpu_event {
    CUevent handle;
    uint64_t recorded_at; /* when the event was handed to the driver */
    uint64_t at;          /* when the card passed it; 0: not known yet */
    uint32_t serial;      /* which use of the event this is */
    uint32_t users;       /* 0: may be used again */
};

struct gpu_events {
    struct gpu_event all[GPU_EVENTS_MAX];
    uint32_t serial; /* of the event that was recorded last */
    uint64_t base_at; /* when the card passed `base`, as exactly as is known */
    uint16_t base;    /* what other events are measured from */
};

/*
 * Records a moment; 0 when the driver refuses or there are too many. It lasts while it has users,
 * and some time longer: a thread that is none of them remembers its serial.
 */
uint16_t gpu_events_record(struct gpu_events *events, CUstream stream, uint64_t now);

uint16_t gpu_events_keep(struct gpu_events *events, uint16_t number);
void gpu_events_drop(struct gpu_events *events, uint16_t number);

enum gpu_event_state { GPU_EVENT_AHEAD, GPU_EVENT_PASSED, GPU_EVENT_BROKEN };

/* Whether the card has passed it; then `at` says when. */
enum gpu_event_state gpu_events_look(struct gpu_events *events, uint16_t number, uint64_t now);

static inline uint64_t gpu_events_at(const struct gpu_events *events, uint16_t number) {
    return events->all[number].at;
}

#endif
