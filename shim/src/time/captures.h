/* What a captured stream is given is recorded into a graph and not done. */
#ifndef MIZAR_CAPTURES_H
#define MIZAR_CAPTURES_H

#include "base/cuda_api.h"
#include "region/regions.h"

/* Whether the stream of that name (stream_credit.h) is captured now; it costs a call of the driver. */
bool captures_ask(uintptr_t stream);

/* The same, but nobody is asked while nothing is captured in this process. */
static inline bool captures_record(struct regions *regions, uintptr_t stream) {
    bool any = __atomic_load_n(&regions->process->captures, __ATOMIC_RELAXED);
    return __builtin_expect(any, 0) && captures_ask(stream);
}

#endif
