/* First uses of code by this process: what it has met, and what a use that is new needs. */
#ifndef MIZAR_FIRST_USE_H
#define MIZAR_FIRST_USE_H

#include "base/cuda_api.h"
#include "region/regions.h"

struct first_use {
    struct regions *regions; /* NULL: no first use */
    uint64_t key;
    const void *owner;
    int card;
    unsigned count;
    uint64_t waited; /* ns for the agent: lazy_code.h */
    uint64_t stacks; /* that it needs, larger than usual, bytes of each */
};

/*
 * Before `work`, a function or a graph, is launched into the stream, in its context; or what the owner, a module or
 * library, calls by that name is used. OUT_OF_MEMORY where it is new to this process and there is no room
 * for its code, also not after the agent has looked again, or for its stacks. `regions` may be NULL.
 */
CUresult first_use_begin(struct first_use *use, struct regions *regions, const void *work, uintptr_t stream);
CUresult first_use_begin_named(struct first_use *use, struct regions *regions, const void *owner,
                               const char *name);

/* After it, whether it worked or not: what was loaded shows in NVML's figures from here on. */
CUresult first_use_end(const struct first_use *use, CUresult result);

/* The same for many at once: how many of them are not known; and remembered one by one after first_use_end(). */
bool first_use_is_known(struct regions *regions, const void *work);
CUresult first_use_begin_many(struct first_use *use, struct regions *regions, unsigned many); /* keeps use->waited */
void first_use_remember(struct regions *regions, const void *work);

/* The owner ends: its names may be others' now. Or any handle may. */
void first_use_forget(const void *owner);
void first_use_forget_all(void);

#endif
