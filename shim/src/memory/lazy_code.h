/*
 * Code that drivers load when it is first used (CUDA_MODULE_LOADING=LAZY, the default since CUDA
 * 12.2). Nobody tells a program how much that takes, but NVML tells the node agent of each process.
 * So first uses are counted in the usage file (code_uses; code_begun while the driver is at it). The
 * agent notices, asks NVML, and answers in the limits file with the bytes (unaccounted_bytes) and with
 * the uses that are in them (code_seen). Room is kept for those that are not.
 */
#ifndef MIZAR_LAZY_CODE_H
#define MIZAR_LAZY_CODE_H

#include "base/cuda_api.h"
#include "region/regions.h"

struct lazy_code_use {
    struct regions *regions; /* NULL: no first use */
    uint64_t key;
    const void *owner;
    int card;
    unsigned count;
    uint64_t stacks; /* that it needs, larger than usual, bytes of each */
};

/*
 * Before `work`, a function or a graph, is launched into the stream, in its context; or what the owner, a module or
 * library, calls by that name is used. OUT_OF_MEMORY where it is new to this process and there is no room
 * for its code, also not after the agent has looked again, or for its stacks. `regions` may be NULL.
 */
CUresult lazy_code_begin(struct lazy_code_use *use, struct regions *regions, const void *work, uintptr_t stream);
CUresult lazy_code_begin_named(struct lazy_code_use *use, struct regions *regions, const void *owner,
                          const char *name);

/* After it, whether it worked or not: what was loaded shows in NVML's figures from here on. */
CUresult lazy_code_end(const struct lazy_code_use *use, CUresult result);

/* The same for many at once: how many of them are not known; and remembered one by one after lazy_code_end(). */
bool lazy_code_is_known(struct regions *regions, const void *work);
CUresult lazy_code_begin_many(struct lazy_code_use *use, struct regions *regions, unsigned many);
void lazy_code_remember(struct regions *regions, const void *work);

/* While the driver is at something of which nobody knows yet what it takes: by 1, and by -1. */
void lazy_code_change_begun(struct regions *regions, int card, int by);

/* Code came with something that was charged already. */
void lazy_code_count(struct regions *regions, int card);

/* Whether it comes when it is used, not as a whole with its module, and there is an agent to ask NVML. */
bool lazy_code_is_watched(struct regions *regions, int card);

/*
 * So much more may have come to the card: room is kept for it, until the agent has looked. False: it is more
 * than there is room for, also after that look.
 */
bool lazy_code_admit(struct regions *regions, int card, uint64_t bytes);

/* Gives a charge back, and keeps room for so much code that may have come behind it: estimates.h. */
void lazy_code_release(struct regions *regions, int card, uint64_t bytes, uint64_t doubtful);

/* Waits for the agent if so many bytes might be had when it has looked; whether it did. */
bool lazy_code_await_look(struct regions *regions, int card, uint64_t bytes);

/* The owner ends: its names may be others' now. Or any handle may. */
void lazy_code_forget(const void *owner);
void lazy_code_forget_all(void);

#endif
