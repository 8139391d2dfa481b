/*
 * While a thread captures a stream, calls that might wait are refused and spoil the capture, unless
 * the thread says that it knows: around what the shim asks on its own account.
 */
#ifndef MIZAR_RELAX_H
#define MIZAR_RELAX_H

#include "resolve.h"

static inline int relax_begin(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static inline void relax_end(int mode) {
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

#endif
