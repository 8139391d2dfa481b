#include "time/gpu_events.h"

#include "lookup/cards.h"
#include "lookup/relax.h"

/* ns from the base event up to which a float of milliseconds is exact to 2 us. */
#define REBASE_NS UINT64_C(30000000000)

/*
 * An event without users, in round-robin order, which is about the one unused for longest; 0: none.
 */
static uint16_t free_number(struct gpu_events *events) {
    for (uint32_t i = 1; i < GPU_EVENTS_MAX; i++) {
        uint16_t number = (uint16_t)(1 + (events->serial + i) % (GPU_EVENTS_MAX - 1));
        if (!events->all[number].users) return number;
    }
    return 0;
}

static bool make_handle(struct gpu_event *event, CUstream stream) {
    if (!cards_enter(cards_context(stream))) return false;
    CUresult result = RELAXED(cuEventCreate, &event->handle, CU_EVENT_DEFAULT);
    cards_leave();
    return result == CUDA_SUCCESS;
}

/* Makes the event if it was never used before. */
static bool has_handle(struct gpu_event *event, CUstream stream) {
    return event->handle || make_handle(event, stream);
}

uint16_t gpu_events_record(struct gpu_events *events, CUstream stream, uint64_t now) {
    uint16_t number = free_number(events);
    struct gpu_event *event = &events->all[number];
    if (!number || !has_handle(event, stream)) return 0;
    if (RELAXED(cuEventRecord, event->handle, stream) != CUDA_SUCCESS) return 0;
    event->serial = ++events->serial;
    event->at = 0;
    event->recorded_at = now;
    return number;
}

uint16_t gpu_events_keep(struct gpu_events *events, uint16_t number) {
    if (number) events->all[number].users++;
    return number;
}

void gpu_events_drop(struct gpu_events *events, uint16_t number) {
    if (number) events->all[number].users--;
}

static void set_base(struct gpu_events *events, uint16_t number) {
    gpu_events_drop(events, events->base);
    events->base = gpu_events_keep(events, number);
    events->base_at = events->all[number].at;
}

/*
 * The card passed the event between its recording and now, `elapsed` ns after the base. That bounds
 * the moment of the base; the error shrinks with every event.
 */
static void correct_base(struct gpu_events *events, const struct gpu_event *event, uint64_t elapsed,
                         uint64_t now) {
    if (events->base_at + elapsed < event->recorded_at)
        events->base_at = event->recorded_at - elapsed;
    if (events->base_at + elapsed > now) events->base_at = now - elapsed;
}

static bool measure(struct gpu_events *events, uint16_t number, uint64_t now) {
    struct gpu_event *event = &events->all[number];
    float ms = 0;
    if (!events->base) {
        event->at = event->recorded_at;
        set_base(events, number);
        return true;
    }
    if (RELAXED(cuEventElapsedTime, &ms, events->all[events->base].handle, event->handle) != CUDA_SUCCESS)
        return false;
    int64_t elapsed = (int64_t)((double)ms * 1e6);
    if (elapsed >= 0) correct_base(events, event, (uint64_t)elapsed, now);
    event->at = events->base_at + (uint64_t)elapsed;
    if (elapsed > (int64_t)REBASE_NS) set_base(events, number);
    return true;
}

enum gpu_event_state gpu_events_look(struct gpu_events *events, uint16_t number, uint64_t now) {
    struct gpu_event *event = &events->all[number];
    if (event->at) return GPU_EVENT_PASSED;
    CUresult result = RELAXED(cuEventQuery, event->handle);
    if (result == CUDA_ERROR_NOT_READY) return GPU_EVENT_AHEAD;
    if (result != CUDA_SUCCESS || !measure(events, number, now)) return GPU_EVENT_BROKEN;
    return GPU_EVENT_PASSED;
}
