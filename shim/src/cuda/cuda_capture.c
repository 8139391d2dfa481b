/* Counts the captures in progress in this process. */
#include "lookup/resolve.h"
#include "region/enter.h"
#include "time/captures.h"
#include "time/stream_credit.h"

/*
 * A capture that ends because its stream is destroyed stays counted. That only causes needless
 * calls of the driver.
 */
static void add(uint32_t number) {
    struct regions *regions = shim_known();
    if (regions) __atomic_fetch_add(&regions->process->captures, number, __ATOMIC_RELAXED);
}

static CUresult begun(CUresult result) {
    if (result != CUDA_SUCCESS) add(-1u);
    return result;
}

/*
 * A capture may end although the call fails, and may go on after a call that fails, so the driver
 * is asked.
 */
static CUresult ended(CUresult result, uintptr_t stream, bool was_captured) {
    if (was_captured && !captures_ask(stream)) add(-1u);
    return result;
}

#define BEGIN(symbol, parameters, arguments)     \
    EXPORT CUresult symbol parameters {          \
        add(1);                                  \
        return begun(REAL(symbol) arguments);    \
    }

#define END(symbol, twin, parameters, arguments)                            \
    EXPORT CUresult symbol parameters {                                     \
        uintptr_t name = stream_credit_name(stream, twin);                        \
        bool is_captured = captures_ask(name);                              \
        return ended(REAL(symbol) arguments, name, is_captured);            \
    }

BEGIN(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph, CAPTURE_TO_GRAPH, (stream, graph, after, edges, count, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz, CAPTURE_TO_GRAPH, (stream, graph, after, edges, count, mode))
BEGIN(cuStreamBeginRecaptureToGraph, CAPTURE_AGAIN, (stream, mode, graph, callback, data))
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, CAPTURE_AGAIN, (stream, mode, graph, callback, data))
BEGIN(cuStreamBeginCaptureToCig, (CUstream stream, void *parameters), (stream, parameters))
BEGIN(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, void *parameters), (stream, parameters))
END(cuStreamEndCapture, false, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCapture_ptsz, true, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCaptureToCig, false, (CUstream stream), (stream))
END(cuStreamEndCaptureToCig_ptsz, true, (CUstream stream), (stream))
