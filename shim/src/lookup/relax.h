/*
 * RELAXED(cuMemPoolTrimTo, pool, 0): a call of the driver that the program did not make. While any
 * thread captures a stream, the driver refuses calls that might wait or allocate, and invalidates
 * the capture, unless the calling thread is in relaxed mode. The program's own calls (REAL) are
 * refused as without the shim. tests/unit/shim/test_relaxed.py lists the few calls that are always
 * permitted.
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
