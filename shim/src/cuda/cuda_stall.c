/*
 * Calls that may stall a stream without using the card. A launch after one is not charged for the
 * time in which the stream is stalled.
 */
#include "lookup/relax.h"
#include "lookup/resolve.h"
#include "region/enter.h"
#include "time/captures.h"
#include "time/launch_metering.h"

/*
 * Whether the event has passed. During captures the answer is no, since the event may be part of
 * one and must not be queried then.
 */
static bool has_happened(CUevent event) {
    const struct regions *regions = shim_known();
    if (!regions || __atomic_load_n(&regions->process->captures, __ATOMIC_RELAXED)) return false;
    return RELAXED(cuEventQuery, event) == CUDA_SUCCESS;
}

#define STALL_EACH(symbol, stream, over, parameters, arguments)                \
    EXPORT CUresult symbol parameters {                                        \
        if (stream_credit_granted() && !(over)) metering_before_stall(stream); \
        return REAL(symbol) arguments;                                         \
    }
#include "base/stalls.def"

/* ---- all streams of a context ---- */

EXPORT CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
    if (stream_credit_granted() && !has_happened(event)) metering_before_wait_in(context);
    return REAL(cuCtxWaitEvent)(context, event);
}

EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    CUcontext view;
    if (stream_credit_granted() && !has_happened(event) &&
        RELAXED(cuCtxFromGreenCtx, &view, green) == CUDA_SUCCESS)
        metering_before_wait_in(view);
    return REAL(cuGreenCtxWaitEvent)(green, event);
}
