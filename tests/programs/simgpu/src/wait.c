/* Waiting for work, and the worker thread that serves queues while no thread waits. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "engine.h"

static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static bool worker_runs;

static bool anything_queued(void) {
    for (CUstream stream = engine_streams; stream; stream = stream->next)
        if (stream->head) return true;
    return false;
}

/* Sleeps until `when`, but only briefly, since another thread may advance a clock that is not
 * real. */
static void rest(uint64_t when) {
    const uint64_t moment = 1000000;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t now = sim_now(&driver.sim), ns = moment;
    if (driver.sim.state->clock_mode == SIM_CLOCK_REAL && when < now + moment)
        ns = when > now ? when - now : 0;
    until.tv_nsec += (long)ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&more, &engine_lock, &until);
}

static void *work(void *nothing) {
    (void)nothing;
    pthread_mutex_lock(&engine_lock);
    for (;;) {
        uint64_t wake = engine_push(true);
        if (anything_queued()) rest(wake);
        else pthread_cond_wait(&more, &engine_lock);
    }
    return NULL;
}

void engine_wake_worker(void) {
    pthread_t thread;
    if (!worker_runs && pthread_create(&thread, NULL, work, NULL) == 0) {
        pthread_detach(thread);
        worker_runs = true;
    }
    pthread_cond_signal(&more);
}

static uint64_t when(const struct mark *mark) {
    if (mark->state == MARK_TIME) return mark->at;
    return mark->state == MARK_WORK ? lane_when(mark->lane, mark->at) : SIM_NEVER;
}

CUresult engine_wait(CUcontext context, struct mark *mark) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&engine_lock);
    while (!result) {
        uint64_t wake = engine_push(false);
        if (mark_reached(mark)) break;
        uint64_t reached = when(mark);
        pthread_mutex_unlock(&engine_lock);
        sim_wait_until(&driver.sim, reached < wake ? reached : wake);
        if (sim_card_lost(&driver.sim, context->card)) result = CUDA_ERROR_DEVICE_UNAVAILABLE;
        pthread_mutex_lock(&engine_lock);
    }
    pthread_mutex_unlock(&engine_lock);
    return result;
}

CUresult engine_wait_and_drop(CUcontext context, struct mark *mark) {
    CUresult result = engine_wait(context, mark);
    pthread_mutex_lock(&engine_lock);
    mark_drop(mark);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

CUresult engine_wait_stream(CUstream stream) {
    CUcontext context = stream->context;
    pthread_mutex_lock(&engine_lock);
    struct mark *mark = stream_idle(stream) ? NULL : stream_mark(stream);
    pthread_mutex_unlock(&engine_lock);
    return mark ? engine_wait_and_drop(context, mark) : CUDA_SUCCESS;
}

/* Waits for the busy streams of a context one after another. */
CUresult engine_wait_context(CUcontext context) {
    for (;;) {
        struct mark *mark = NULL;
        pthread_mutex_lock(&engine_lock);
        for (CUstream each = engine_streams; each && !mark; each = each->next)
            if (each->context == context && !stream_idle(each)) mark = stream_mark(each);
        pthread_mutex_unlock(&engine_lock);
        if (!mark) return CUDA_SUCCESS;
        TRY(engine_wait_and_drop(context, mark));
    }
}
