/*
 * Measures moments on the card by CUDA events, which are recorded into streams. Once the card has
 * passed an event, its moment is known in ns of CLOCK_MONOTONIC. Each context has one set of
 * events, whose lock the caller holds. Events are named by numbers; 0 means no event.
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
    uint32_t serial;  /* serial of the event that was recorded last */
    uint64_t base_at; /* when the card passed `base`, as exactly as known */
    uint16_t base;    /* the event from which others are measured */
};

/*
 * Records an event into the stream. Returns 0 when the driver refuses or all events have users. The
 * event may be reused once it has no users; a thread that is not among them compares its serial.
 */
uint16_t gpu_events_record(struct gpu_events *events, CUstream stream, uint64_t now);

/* Adds a user to the event, and removes one. Both accept 0; keep returns the number. */
uint16_t gpu_events_keep(struct gpu_events *events, uint16_t number);
void gpu_events_drop(struct gpu_events *events, uint16_t number);

enum gpu_event_state { GPU_EVENT_AHEAD, GPU_EVENT_PASSED, GPU_EVENT_BROKEN };

/* Whether the card has passed the event; if so, gpu_events_at() returns when. */
enum gpu_event_state gpu_events_look(struct gpu_events *events, uint16_t number, uint64_t now);

/* When the card passed the event (ns of CLOCK_MONOTONIC); 0: not known yet. */
static inline uint64_t gpu_events_at(const struct gpu_events *events, uint16_t number) {
    return events->all[number].at;
}

#endif
