/*
 * Metering of GPU time. The path of a launch:
 *
 *     if (stream_credit_pay(function, shape, stream)) return the driver's launch;  // nearly always
 *     struct piece piece;
 *     CUresult result = metering_begin(&piece, function, shape, stream);  // may wait
 *     if (result == CUDA_SUCCESS) result = the driver's launch;
 *     return metering_end(&piece, result);  // records an event, grants time
 *
 * A batch of work lies between two events. Once the card has passed them, the container is charged
 * for the time between, except for moments for which one of its processes was charged already.
 */
#ifndef MIZAR_LAUNCH_METERING_H
#define MIZAR_LAUNCH_METERING_H

#include "memory/first_use.h"
#include "region/regions.h"
#include "time/stream_credit.h"

/* A launch that is not paid for by a grant. */
struct piece {
    struct regions *regions;
    struct meter *meter; /* NULL: not measured */
    const void *work;
    uint64_t shape;
    uintptr_t stream;
    uintptr_t name; /* name of the stream's credit */
    int card;
    struct guess guess;
    uint64_t extra; /* ns reserved in addition, for launches that follow */
    uint16_t overlap; /* context_meter_overlap() */
    uint64_t asked_at, launched_at;
    uint16_t begin; /* the event before it */
    struct first_use use;
};

/*
 * To be called before and after a launch. `work`: the function or graph. `shape`: costs_shape() for
 * a kernel, else 0. metering_begin() waits until the launch may start, and returns an error if it
 * must not start; then metering_end() must not be called. metering_end() takes the launch's result
 * and returns the result for the program.
 */
CUresult metering_begin(struct piece *piece, const void *work, uint64_t shape, uintptr_t stream);
CUresult metering_end(struct piece *piece, CUresult result);

/*
 * To be called before and after a wait for a stream, for all streams of the current context, or for
 * all of another context (NULL: the current one). Before the wait, the unused rest of grants is
 * refunded; after it, finished work is charged.
 */
void metering_before_wait(uintptr_t stream);
void metering_before_wait_for_all(void);
void metering_before_wait_in(CUcontext context);
void metering_after_wait(void);

/*
 * To be called before anything other than work that may stall the stream, such as a copy. The
 * thread's grant for the stream ends, and the next launch is measured from after the stall, so that
 * the container is not charged for it.
 */
void metering_before_stall(uintptr_t stream);

/*
 * To be called before a stream is destroyed. When it returns, no thread uses the handle any more.
 */
void metering_before_end(CUstream stream);

/*
 * Sets whether the context (NULL: every context) may be ending, and its events with it. While it
 * may, only threads that work in the context use its events.
 */
void metering_rest(struct regions *regions, CUcontext context, bool rests);

/* Forgets a context that is gone, and its events with it. */
void metering_forget(struct regions *regions, CUcontext context);

#endif
