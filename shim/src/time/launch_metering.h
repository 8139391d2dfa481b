/*
 * Metering of GPU time. One launch's way:
 *
 *     if (stream_credit_pay(function, shape, stream)) return the driver's launch;    // nearly always
 *     struct piece piece;
 *     CUresult result = metering_begin(&piece, function, shape, stream);      // waits for its turn
 *     if (result == CUDA_SUCCESS) result = the driver's launch;
 *     return metering_end(&piece, result);                               // measures, grants more
 *
 * A batch of work lies between two events; once the card has passed them, the container is charged
 * for the time between, as far as nobody of the container was charged for it already.
 */
#ifndef MIZAR_LAUNCH_METERING_H
#define MIZAR_LAUNCH_METERING_H

#include "memory/first_use.h"
#include "region/regions.h"
#include "time/stream_credit.h"

struct piece {
    struct regions *regions;
    struct meter *meter; /* NULL: not measured */
    const void *work;
    uint64_t shape;
    uintptr_t stream;
    uintptr_t name; /* of the credit */
    int card;
    struct guess guess;
    uint64_t extra; /* reserved beyond it, for launches that follow */
    uint16_t overlap;
    uint64_t asked_at, launched_at;
    uint16_t begin; /* event */
    struct first_use use;
};

/* `shape`: of a kernel's launch (costs_shape), else 0. */
CUresult metering_begin(struct piece *piece, const void *work, uint64_t shape, uintptr_t stream);
CUresult metering_end(struct piece *piece, CUresult result);

/* Around a wait for a stream: what was granted and not used goes back, what is done is charged. */
void metering_before_wait(uintptr_t stream);
void metering_before_wait_for_all(void);
void metering_before_wait_in(CUcontext context); /* for all of that one; NULL: the current one */
void metering_after_wait(void);

/*
 * Before what may hold the stream up otherwise than by work: what was granted for it ends here, and
 * the next launch is measured from behind it, so that nobody pays for the time.
 */
void metering_before_stall(uintptr_t stream);

/* The stream ends: no thread may touch its handle any more. */
void metering_before_end(CUstream stream);

/*
 * While the context (NULL: any) may be ending, and its events with it, no thread looks at them but
 * those that work there.
 */
void metering_rest(struct regions *regions, CUcontext context, bool rests);

/* The context is gone, and with it its events. */
void metering_forget(struct regions *regions, CUcontext context);

#endif
