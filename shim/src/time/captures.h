/* Work that is launched into a captured stream is recorded into a graph and does not run. */
#ifndef MIZAR_CAPTURES_H
#define MIZAR_CAPTURES_H

#include "base/cuda_api.h"
#include "region/regions.h"

/* Whether the stream of that name (stream_credit.h) is being captured. Calls the driver. */
bool captures_ask(uintptr_t stream);

/* Like captures_ask(), but calls the driver only while this process has captures. */
static inline bool captures_record(struct regions *regions, uintptr_t stream) {
    bool any = __atomic_load_n(&regions->process->captures, __ATOMIC_RELAXED);
    return __builtin_expect(any, 0) && captures_ask(stream);
}

#endif
