/* The inside of the fake driver, for tests. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stdint.h>

#define FAKE_DEVICES 8

enum fake_call {
#define HOOK(library, symbol, base, version, stream) FAKE_##symbol,
#define NEED(library, symbol) FAKE_##symbol,
#include "lookup/hooks_generated.def"
    FAKE_CALLS
};

#define FAKE_LIVE 64

struct fake {
    int devices;
    int uncounted;       /* `calls` stays as it is: threads would wait for one another's counts */
    int fail;            /* what the next calls that take or free memory return */
    uint64_t total;      /* bytes of each card */
    uint64_t others;     /* bytes that others have taken of it */
    uint64_t pitch_unit; /* the pitch is a multiple of this */
    uint64_t next, next_large; /* the next pointers */
    uint64_t contexts;     /* that live now */
    uint64_t context_cost; /* bytes that NVML says each of them takes */
    uint64_t module_bytes; /* what each module or library takes of the card */
    int lazy; /* the driver reports that code is loaded at its first use; nothing else changes */
    uint64_t pool_grain;   /* pools grow in steps of this */
    uint64_t pool_threshold;
    int pool_keeps; /* pools keep freed memory, even when the program waits, until they are trimmed */
    uint64_t live_bytes[FAKE_LIVE], live_pointers[FAKE_LIVE]; /* of pools' allocations */
    uint64_t pool_reserved, pool_live;                        /* of all pools together */
    int pool_location, graph_location; /* types of what pools and allocations say; 0: that of old drivers */
    uint64_t graph_reserved, graph_sizes[4];                  /* the graph: its allocation nodes */
    uint64_t graph_kernels[4]; /* and the functions of its kernel nodes */
    int local_bytes, kernel_local_bytes; /* that the threads of each function and kernel need */
    int capturing;
    int hides_green; /* cuStreamGetCtx refuses streams of green contexts */
    unsigned stays_in, is_in; /* the number, plus one, of a call that does not return; whether it has begun */
    void *pending; /* an event that has not happened */
    uint64_t launch_takes; /* ns of the card's time, one launch after the other ... */
    uint64_t free_at;      /* ... so that it is done with all of them then */
    uint64_t stale; /* number of uses of contexts that were ending or had ended */
    int card_full; /* device memory is refused, managed memory is not */
    int frees_nothing; /* calls that free memory, or destroy an object that has some, fail */
    int busy;      /* no event has happened yet */
    int keeps_managed; /* cuMemFreeAsync refuses managed memory: the newest of it */
    uint64_t managed;  /* that one's address */
    int one_handle;    /* all memory that is opened is of one handle */
    int memory_device; /* the device of all memory; -1: the driver does not report it */
    uint64_t calls[FAKE_CALLS];
};

/* Makes a context of the device current without the driver's being asked for one. */
void fake_use(int device) __attribute__((visibility("default")));

extern struct fake fake __attribute__((visibility("default")));
extern uint64_t fake_nvml_calls; /* into the fake NVML */

#endif
