#include "time/stream_credit.h"

THREADS_OWN struct stream_credits stream_credits;

static const uint32_t awake = 0;
const uint32_t *stream_credit_asleep = &awake;

struct stream_credit *stream_credit_search(uintptr_t name) {
    for (uint32_t i = 0; i < STREAM_CREDITS_MAX; i++)
        if (stream_credits.all[i].name == name) {
            stream_credits.last = i;
            return &stream_credits.all[i];
        }
    return NULL;
}
