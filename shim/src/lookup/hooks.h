/* The hook table: hooks_generated.def as data. */
#ifndef MIZAR_HOOKS_H
#define MIZAR_HOOKS_H

#include "base/cuda_api.h"

enum hook_library { LIBRARY_LIBC, LIBRARY_CUDA, LIBRARY_NVML, LIBRARIES };

enum hook_stream { STREAM_ANY, STREAM_PER_THREAD };

enum hook_id {
#define HOOK(library, symbol, base, version, stream) H_##symbol,
#define NEED(library, symbol) H_##symbol,
#include "lookup/hooks_generated.def"
    HOOK_COUNT
};

#define HOOK_NONE (-1)

/* The newest CUDA that cuda_calls.txt knows. */
#define NEWEST_CUDA(newest) enum { HOOKS_NEWEST_CUDA = newest };
#include "lookup/hooks_generated.def"

struct hook {
    const char *symbol;
    const char *base; /* name for cuGetProcAddress; "" if it has none */
    void *wrapper;    /* NULL: the shim only calls the function */
    uint16_t version;
    uint8_t library, stream;
};

extern const struct hook hooks[HOOK_COUNT];

/* The hook that wraps this symbol, or HOOK_NONE. */
int hooks_by_symbol(const char *symbol);

/* The first hook with that base name, and the next one with the same; or HOOK_NONE. */
int hooks_by_base(const char *base);
int hooks_next_of_base(int hook);

#endif
