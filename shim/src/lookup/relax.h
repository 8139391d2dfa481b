/*
 * RELAXED(cuMemPoolTrimTo, pool, 0): a call that the shim makes on its own account. While any thread
 * captures a stream, calls that might wait or allocate are refused and spoil the capture, unless the
 * calling thread says that it knows. What the program called itself (REAL) is refused as without the
 * shim. tests/unit/shim/test_relaxed.py lists the few questions that nobody forbids.
 */
#ifndef MIZAR_RELAX_H
#define MIZAR_RELAX_H

#include "lookup/resolve.h"

static inline int relax_begin(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static inline void relax_end(int mode) {
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

#define RELAXED(symbol, ...)                           \
    ({                                                 \
        int mode_ = relax_begin();                     \
        CUresult result_ = REAL(symbol)(__VA_ARGS__);  \
        relax_end(mode_);                              \
        result_;                                       \
    })

#endif
