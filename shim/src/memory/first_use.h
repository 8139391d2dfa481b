/*
 * First uses of code by this process: which code it has used, and room for code and stacks of new
 * uses.
 */
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
    uint64_t waited; /* ns spent waiting for the agent: lazy_code.h */
    uint64_t stacks; /* bytes of each stack that it needs; 0: no more than usual */
};

/*
 * To be called before a function or graph (`work`) is launched into the stream, or before an object
 * is used that its owner, a module or library, has under that name. If this process has not used it
 * before, reserves room for its code and stacks, waiting for the agent's figures if necessary.
 * Returns OUT_OF_MEMORY if there is no room. `regions` may be NULL.
 */
CUresult first_use_begin(struct first_use *use, struct regions *regions, const void *work, uintptr_t stream);
CUresult first_use_begin_named(struct first_use *use, struct regions *regions, const void *owner,
                               const char *name);

/*
 * To be called after the use, with its result, which is returned. From then on, NVML's figures
 * include the code that was loaded.
 */
CUresult first_use_end(const struct first_use *use, CUresult result);

/*
 * The same for several uses at once, of which `many` are not known. They are remembered one by one
 * after first_use_end(). first_use_begin_many() keeps use->waited.
 */
bool first_use_is_known(struct regions *regions, const void *work);
CUresult first_use_begin_many(struct first_use *use, struct regions *regions, unsigned many);
void first_use_remember(struct regions *regions, const void *work);

/* Forgets the uses of an owner that ends, or all uses, since the handles may be reused. */
void first_use_forget(const void *owner);
void first_use_forget_all(void);

#endif
