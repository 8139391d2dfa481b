/* The inside of the fake driver, for tests. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stdint.h>

#define FAKE_DEVICES 8

enum fake_call {
#define HOOK(library, symbol, base, version, stream) FAKE_##symbol,
#define NEED(library, symbol) FAKE_##symbol,
#include "hooks.def"
#undef HOOK
#undef NEED
    FAKE_CALLS
};

struct fake {
    int devices;
    int fail;            /* what the next calls that take or free memory return */
    uint64_t total;      /* bytes of each card */
    uint64_t others;     /* bytes that others have taken of it */
    uint64_t pitch_unit; /* the pitch is a multiple of this */
    uint64_t next;       /* the next pointer */
    uint64_t calls[FAKE_CALLS];
};

extern struct fake fake __attribute__((visibility("default")));
extern uint64_t fake_nvml_calls; /* into the fake NVML */

#endif
