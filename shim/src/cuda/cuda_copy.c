/*
 * Copies and memsets, which are counted when the driver has accepted them. A thread that waits for
 * one also waits for the stream's earlier work, as by cuStreamSynchronize. A launch after one is
 * not charged for its time.
 */
#include "lookup/resolve.h"
#include "time/copies.h"
#include "time/launch_metering.h"

/* The legacy stream's work comes after that of all other blocking streams. */
static void before_wait(uintptr_t stream) {
    if (stream == CU_STREAM_LEGACY) metering_before_wait_for_all();
    metering_before_wait(stream);
}

#define COPY_EACH(symbol, stream, waits, kind, count, bytes, parameters, arguments) \
    EXPORT CUresult symbol parameters {                                             \
        const bool wait = waits;                                                    \
        const uint64_t sum = bytes;                                                 \
        if (wait) before_wait(stream);                                              \
        else if (copies_take_long(kind, sum)) metering_before_stall(stream);        \
        CUresult result = REAL(symbol) arguments;                                   \
        if (result == CUDA_SUCCESS) copies_count(stream, kind, count, sum);         \
        if (wait) metering_after_wait();                                            \
        return result;                                                              \
    }
#include "base/copies.def"
