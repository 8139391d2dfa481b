/* Streams: handles, default streams, and appending work. */
#include "stream.h"

#include <stdlib.h>

#include "capture.h"
#include "engine.h"

enum { MAGIC = 0x53545221, ENDED = 0x5354522d };
enum { LEGACY_HANDLE = 1, PER_THREAD_HANDLE = 2, CONTEXTS = 16, SPARES = 256 };

CUstream engine_streams;

/* Streams that have ended. The first one is reused once there are SPARES, so that an old handle is
 * recognized for a while. */
static CUstream spare, *spare_end = &spare;
static unsigned spares;
static uint64_t last_id;

/* Per-thread default streams of this thread. */
static __thread struct {
    CUcontext context;
    uint64_t context_id;
    CUstream stream;
} own[CONTEXTS];

static CUstream take_spare(void) {
    CUstream stream = spare;
    if (spares < SPARES) return malloc(sizeof *stream);
    spare = stream->next;
    spares--;
    return stream;
}

static void give_spare(CUstream stream) {
    stream->next = NULL;
    *spare_end = stream;
    spare_end = &stream->next;
    spares++;
}

CUstream stream_new(CUcontext context, int kind) {
    CUstream stream = take_spare();
    if (!stream) abort();
    *stream = (struct CUstream_st){.magic = MAGIC, .kind = kind, .context = context};
    stream->lane = lane_of(context->card);
    stream->id = ++last_id;
    stream->end = &stream->head;
    stream->next = engine_streams;
    stream->link = &engine_streams;
    if (stream->next) stream->next->link = &stream->next;
    engine_streams = stream;
    return stream;
}

static void unlink_stream(CUstream stream) {
    *stream->link = stream->next;
    if (stream->next) stream->next->link = stream->link;
    stream->magic = stream->dying ? ENDED : 0; /* otherwise its context has ended */
}

static void drop_work(struct queued *queued) {
    if (queued->work.kind == WORK_RECORD || queued->work.kind == WORK_WAIT) {
        if (queued->work.mark->state == MARK_UNKNOWN) mark_set_time(queued->work.mark, 0);
        mark_drop(queued->work.mark);
    }
    free(queued);
}

void stream_end(CUstream stream) {
    while (stream->head) {
        struct queued *next = stream->head->next;
        drop_work(stream->head);
        stream->head = next;
    }
    mark_drop(stream->settling);
    unlink_stream(stream);
    give_spare(stream);
}

void stream_end_context(CUcontext context) {
    engine_wait_context(context);
    pthread_mutex_lock(&engine_lock);
    for (CUstream next, each = engine_streams; each; each = next) {
        next = each->next;
        if (each->context == context) stream_end(each);
    }
    pthread_mutex_unlock(&engine_lock);
}

/* ---- default streams ------------------------------------------------------------------------ */

static CUstream legacy_of(CUcontext context) {
    for (CUstream each = engine_streams; each; each = each->next)
        if (each->context == context && each->kind == STREAM_LEGACY) return each;
    return NULL;
}

static CUstream find_own(CUcontext context) {
    for (int i = 0; i < CONTEXTS; i++) {
        CUcontext of = own[i].context;
        bool current = of && of->alive && of->id == own[i].context_id;
        if (current && of == context) return own[i].stream;
        if (current) continue;
        own[i].context = context;
        own[i].context_id = context->id;
        own[i].stream = stream_new(context, STREAM_PER_THREAD);
        return own[i].stream;
    }
    return NULL;
}

static CUstream default_stream(CUcontext context, bool per_thread) {
    pthread_mutex_lock(&engine_lock);
    CUstream stream = per_thread ? find_own(context) : legacy_of(context);
    if (!stream && !per_thread) stream = stream_new(context, STREAM_LEGACY);
    pthread_mutex_unlock(&engine_lock);
    return stream;
}

CUresult stream_get(CUstream handle, CUstream *stream) {
    CUcontext context;
    uintptr_t value = (uintptr_t)handle;
    TRY(driver_ready());
    if (value <= PER_THREAD_HANDLE) {
        TRY(context_current(&context));
        bool per_thread = value == PER_THREAD_HANDLE || (!value && per_thread_default);
        *stream = default_stream(context, per_thread);
        return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (handle->magic == ENDED || handle->dying) misused("a destroyed stream");
    if (handle->magic != MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    if (sim_card_lost(&driver.sim, handle->context->card)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    *stream = handle;
    return context_whole(handle->context)->fault;
}

/* ---- appending ------------------------------------------------------------------------------ */

bool stream_idle(CUstream stream) {
    if (stream->head) return false;
    if (stream->tail.is_work) return lane_reached(stream->lane, stream->tail.at);
    return stream->tail.at <= sim_now(&driver.sim);
}

void stream_retire(CUstream stream) {
    stream->dying = true;
    if (stream_idle(stream)) stream_end(stream);
}

static void enqueue(CUstream stream, const struct work *work, uint64_t now) {
    struct queued *queued = malloc(sizeof *queued);
    if (!queued) abort();
    *queued = (struct queued){.work = *work, .asked_at = now};
    *stream->end = queued;
    stream->end = &queued->next;
    stream->length++;
    engine_wake_worker();
}

void stream_append(CUstream stream, struct work work) {
    uint64_t wake, now = sim_now(&driver.sim);
    if (stream->head || !engine_run(stream, &work, now, false, &wake)) enqueue(stream, &work, now);
}

struct mark *stream_mark(CUstream stream) {
    struct mark *mark = mark_new();
    stream_append(stream, (struct work){.kind = WORK_RECORD, .mark = mark_keep(mark)});
    return mark;
}

void stream_join(CUstream stream, CUstream other) {
    if (stream == other || stream_idle(other)) return;
    stream_append(stream, (struct work){.kind = WORK_WAIT, .mark = stream_mark(other)});
}

static bool obeys_legacy(CUstream stream) {
    return stream->kind == STREAM_BLOCKING || stream->kind == STREAM_PER_THREAD;
}

/* The legacy stream waits for all blocking streams of its context, and they wait for it. */
static void join_implicitly(CUstream stream) {
    if (obeys_legacy(stream)) {
        CUstream legacy = legacy_of(stream->context);
        if (legacy) stream_join(stream, legacy);
    }
    if (stream->kind != STREAM_LEGACY) return;
    for (CUstream other = engine_streams; other; other = other->next)
        if (other->context == stream->context && obeys_legacy(other)) stream_join(stream, other);
}

/* Refuses work in the legacy stream if blocking streams are being captured, since it would depend
 * on them. */
static CUresult implicit_allowed(CUstream stream) {
    if (stream->kind != STREAM_LEGACY) return CUDA_SUCCESS;
    for (CUstream other = engine_streams; other; other = other->next)
        if (other->context == stream->context && obeys_legacy(other) && other->capture)
            return capture_spoil(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    return CUDA_SUCCESS;
}

CUresult stream_enter(CUstream stream) {
    pthread_mutex_lock(&engine_lock);
    CUresult result = implicit_allowed(stream);
    if (!result && !stream->capture) join_implicitly(stream);
    return result;
}

void stream_leave(void) {
    pthread_mutex_unlock(&engine_lock);
}

CUresult stream_add(CUstream stream, struct work work) {
    CUresult result = stream_enter(stream);
    if (!result && stream->capture) result = capture_add(stream, &work);
    else if (!result) stream_append(stream, work);
    stream_leave();
    return result;
}
