/* The engine: hands queued work to the card when its dependencies are met, and tells when to try
 * the rest again. */
#include "engine.h"

#include <stdlib.h>

#include "memory.h"

static uint64_t now(void) {
    return sim_now(&driver.sim);
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void set_time(CUstream stream, uint64_t time) {
    stream->tail = (struct moment){.at = time};
}

static void set_work(CUstream stream, uint64_t work) {
    stream->tail = (struct moment){.is_work = true, .at = work};
}

/* ---- times of tails ------------------------------------------------------------------------- */

/* Returns whether the stream's tail is a time. If it is an amount of work not done yet, sets *wake
 * to when it will be. */
static bool settled(CUstream stream, uint64_t asked_at, uint64_t *wake) {
    if (!stream->tail.is_work) return true;
    if (!stream->settling && lane_reached(stream->lane, stream->tail.at)) {
        set_time(stream, asked_at);
        return true;
    }
    if (!stream->settling) {
        stream->settling = mark_new();
        mark_set_work(stream->settling, stream->lane, stream->tail.at);
    }
    if (!mark_reached(stream->settling)) {
        *wake = lane_when(stream->lane, stream->tail.at);
        return false;
    }
    set_time(stream, stream->settling->at);
    mark_drop(stream->settling);
    stream->settling = NULL;
    return true;
}

static bool past(uint64_t time, uint64_t *wake) {
    if (time <= now()) return true;
    *wake = time;
    return false;
}

/* ---- one piece of work: each function returns whether it has handed the work on -------------- */

static bool run_kernel(CUstream stream, const struct work *work, uint64_t *wake) {
    if (!stream->tail.is_work && !past(stream->tail.at, wake)) return false;
    uint64_t after = stream->tail.is_work ? stream->tail.at : 0;
    set_work(stream, lane_place(stream->lane, after, work->kernel.sms, work->kernel.ns));
    return true;
}

static uint64_t copy_ns(const struct sim_card *card, const struct work *work) {
    uint64_t rate =
        work->copy.engine == ENGINE_WITHIN ? card->memory_bytes_per_us : card->link_bytes_per_us;
    return 1000 + box_bytes(&work->copy.box) * 1000 / rate;
}

/* Copy engines serve the copies of all processes in the order of their arrival. Returns when the
 * copy ends. */
static uint64_t book_engine(struct sim_card *card, const struct work *work, uint64_t ready) {
    sim_u64 *free_at = &card->engine_free_at[work->copy.engine];
    uint64_t seen = *free_at, end;
    do end = later(seen, ready) + copy_ns(card, work);
    while (!atomic_compare_exchange_weak(free_at, &seen, end));
    return end;
}

/* A copy ends no earlier than this machine has finished it, which may take longer than the card
 * would. */
static bool run_copy(CUstream stream, const struct work *work, uint64_t asked_at, uint64_t *wake) {
    if (!settled(stream, asked_at, wake)) return false;
    struct sim_card *card = &driver.sim.state->cards[stream->lane->card];
    uint64_t end = book_engine(card, work, later(stream->tail.at, asked_at));
    box_run(&work->copy.box);
    set_time(stream, later(end, now()));
    return true;
}

static bool run_record(CUstream stream, const struct work *work, uint64_t asked_at) {
    const struct moment tail = stream->tail;
    uint64_t soonest = later(asked_at, stream->waited_until);
    if (!tail.is_work) mark_set_time(work->mark, later(tail.at, soonest));
    else if (lane_reached(stream->lane, tail.at)) mark_set_time(work->mark, soonest);
    else mark_set_work(work->mark, stream->lane, tail.at);
    mark_drop(work->mark);
    return true;
}

/* Moves the stream's tail to the later of the tail and an amount of work on the stream's lane. */
static bool join_work(CUstream stream, uint64_t amount, uint64_t *wake) {
    if (!stream->tail.is_work && !past(stream->tail.at, wake)) return false;
    if (!stream->tail.is_work || stream->tail.at < amount) set_work(stream, amount);
    return true;
}

static bool join_time(CUstream stream, uint64_t time, uint64_t *wake) {
    if (time <= now()) {
        stream->waited_until = later(stream->waited_until, time);
        return true;
    }
    if (stream->tail.is_work && !lane_reached(stream->lane, stream->tail.at))
        return past(time, wake);
    set_time(stream, stream->tail.is_work ? time : later(stream->tail.at, time));
    return true;
}

static bool run_wait(CUstream stream, const struct work *work, uint64_t *wake) {
    struct mark *mark = work->mark;
    bool joined;
    if (mark->state == MARK_WORK) mark_reached(mark); /* if reached, it now has a time */
    if (mark->state == MARK_UNKNOWN) return false;
    if (mark->state == MARK_TIME) {
        joined = join_time(stream, mark->at, wake);
    } else if (mark->lane == stream->lane) {
        joined = join_work(stream, mark->at, wake);
    } else {
        *wake = lane_when(mark->lane, mark->at);
        joined = false;
    }
    if (joined) mark_drop(mark);
    return joined;
}

/* Host functions run in the worker's thread, without a lock. */
static bool run_call(CUstream stream, const struct work *work, uint64_t asked_at, bool may_call,
                     uint64_t *wake) {
    if (!settled(stream, asked_at, wake) || !past(stream->tail.at, wake) || !may_call) return false;
    stream->calling = true;
    pthread_mutex_unlock(&engine_lock);
    work->call.function(work->call.data);
    pthread_mutex_lock(&engine_lock);
    stream->calling = false;
    set_time(stream, now());
    return true;
}

static bool run_free(CUstream stream, const struct work *work, uint64_t *wake) {
    if (stream->head && (!settled(stream, now(), wake) || !past(stream->tail.at, wake)))
        return false;
    pool_take_back(work->pointer);
    return true;
}

bool engine_run(CUstream stream, const struct work *work, uint64_t asked_at, bool may_call,
                uint64_t *wake) {
    switch (work->kind) {
    case WORK_KERNEL: return run_kernel(stream, work, wake);
    case WORK_COPY: return run_copy(stream, work, asked_at, wake);
    case WORK_CALL: return run_call(stream, work, asked_at, may_call, wake);
    case WORK_RECORD: return run_record(stream, work, asked_at);
    case WORK_WAIT: return run_wait(stream, work, wake);
    case WORK_FREE: return run_free(stream, work, wake);
    default: return true;
    }
}

/* ---- queues --------------------------------------------------------------------------------- */

static uint64_t push_stream(CUstream stream, bool may_call) {
    while (stream->head && !stream->calling) {
        struct queued *head = stream->head;
        uint64_t wake = SIM_NEVER;
        if (!engine_run(stream, &head->work, head->asked_at, may_call, &wake)) return wake;
        stream->head = head->next;
        stream->length--;
        if (!stream->head) stream->end = &stream->head;
        free(head);
    }
    return SIM_NEVER;
}

/* Repeats until no queue moves, since progress of one queue may unblock another. */
uint64_t engine_push(bool may_call) {
    uint64_t wake = SIM_NEVER;
    for (bool moved = true; moved;) {
        moved = false;
        wake = SIM_NEVER;
        for (CUstream next, stream = engine_streams; stream; stream = next) {
            struct queued *before = stream->head;
            uint64_t when = before ? push_stream(stream, may_call) : SIM_NEVER;
            next = stream->next; /* read after push_stream(), since a host function may have
                                    changed the list */
            if (stream->head != before) moved = true;
            if (when < wake) wake = when;
            if (stream->dying && stream_idle(stream)) stream_end(stream);
        }
    }
    return wake;
}
