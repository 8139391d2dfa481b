/* Events: marks in streams, with the time at which the card passed them. */
#include <stdlib.h>

#include "capture.h"
#include "event.h"
#include "stream.h"
#include "harsh.h"

enum { MAGIC = 0x45565421, DISABLE_TIMING = 2, KNOWN_FLAGS = 7 };

static CUevent spare; /* destroyed events are reused, so that an old handle is recognized */

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    CUcontext context;
    TRY(context_current(&context));
    if (!event || flags > KNOWN_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    CUevent made = spare;
    if (made) spare = made->next_spare;
    pthread_mutex_unlock(&engine_lock);
    if (!made && !(made = malloc(sizeof *made))) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUevent_st){.magic = MAGIC, .flags = flags, .context = context};
    *event = made;
    return CUDA_SUCCESS;
}

static CUresult check(CUevent event) {
    TRY(driver_ready());
    if (!event || event->magic != MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    return context_whole(event->context)->fault;
}

API CUresult cuEventDestroy_v2(CUevent event) {
    TRY(check(event));
    pthread_mutex_lock(&engine_lock);
    mark_drop(event->mark);
    capture_forget_event(event);
    event->magic = 0;
    event->next_spare = spare;
    spare = event;
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy(CUevent event) {
    return cuEventDestroy_v2(event);
}

static CUresult record(CUevent event, CUstream stream) {
    struct mark *mark = mark_new();
    struct work work = {.kind = WORK_RECORD, .mark = mark_keep(mark)};
    const struct sim_card *card = &driver.sim.state->cards[stream->context->card];
    harsh_spend(&driver.sim, card->event_ns, card->event_spread_ns);
    CUresult result = stream_add(stream, work);
    pthread_mutex_lock(&engine_lock);
    mark_drop(result ? mark : event->mark);
    if (!result) event->mark = mark;
    pthread_mutex_unlock(&engine_lock);
    return result;
}

TWINS(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream handle, unsigned flags),
      (event, handle, flags)) {
    CUstream stream;
    TRY(check(event));
    TRY(stream_get(handle, &stream));
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    if (event->context->card != stream->context->card) return CUDA_ERROR_INVALID_HANDLE;
    return stream->capture ? capture_record(stream, event, flags) : record(event, stream);
}

TWINS(cuEventRecord, _ptsz, (CUevent event, CUstream stream), (event, stream)) {
    return cuEventRecordWithFlags(event, stream, 0);
}

/* An event that was never recorded counts as passed. */
TWINS(cuStreamWaitEvent, _ptsz, (CUstream handle, CUevent event, unsigned flags),
      (handle, event, flags)) {
    CUstream stream;
    TRY(check(event));
    TRY(stream_get(handle, &stream));
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    if (event->captured || stream->capture) return capture_wait(stream, event, flags);
    if (!event->mark) return CUDA_SUCCESS;
    return stream_add(stream, (struct work){.kind = WORK_WAIT, .mark = mark_keep(event->mark)});
}

API CUresult cuEventQuery(CUevent event) {
    TRY(capture_permits());
    TRY(check(event));
    if (event->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!event->mark) return CUDA_SUCCESS;
    pthread_mutex_lock(&engine_lock);
    engine_push(false);
    bool reached = mark_reached(event->mark);
    pthread_mutex_unlock(&engine_lock);
    return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuEventSynchronize(CUevent event) {
    TRY(check(event));
    if (event->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!event->mark) return CUDA_SUCCESS;
    pthread_mutex_lock(&engine_lock);
    struct mark *mark = mark_keep(event->mark);
    pthread_mutex_unlock(&engine_lock);
    CUresult result = engine_wait(event->context, mark);
    pthread_mutex_lock(&engine_lock);
    mark_drop(mark);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

static CUresult check_timed(CUevent event) {
    TRY(check(event));
    if (event->flags & DISABLE_TIMING || !event->mark) return CUDA_ERROR_INVALID_HANDLE;
    return cuEventQuery(event);
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    TRY(check_timed(start));
    TRY(check_timed(end));
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card *card = &driver.sim.state->cards[end->context->card];
    uint64_t from = harsh_event_time(card, start->mark->at);
    uint64_t to = harsh_event_time(card, end->mark->at);
    *milliseconds = (float)((double)(int64_t)(to - from) / 1e6);
    return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime(milliseconds, start, end);
}
