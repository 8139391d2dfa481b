/*
 * Code that drivers load when it is first used (CUDA_MODULE_LOADING=LAZY, the default since CUDA
 * 12.2). Nobody tells a program how much that takes, but NVML tells the node agent of each process.
 * So first uses are counted in the usage file (code_uses; code_begun while the driver is at it). The
 * agent notices, asks NVML, and answers in the limits file with the bytes (unaccounted_bytes) and with
 * the uses that are in them (code_seen). Room is kept for those that are not.
 */
#ifndef MIZAR_USES_H
#define MIZAR_USES_H

#include "cuda_api.h"
#include "regions.h"

struct use {
    struct regions *regions; /* NULL: no first use */
    const void *work;
    int card;
    unsigned count;
};

/*
 * Before `work` (a function, a graph, or what uses_named() tells) is used in the current context.
 * OUT_OF_MEMORY where it is new to this process and there is no room for its code, also not after
 * the agent was waited for. `regions` may be NULL.
 */
CUresult uses_begin(struct use *use, struct regions *regions, const void *work);

/* After it, whether it worked or not: what was loaded shows in NVML's figures from here on. */
CUresult uses_end(const struct use *use, CUresult result);

/* The same for many at once: notes each, tells whether it is new, and begins as many as are. */
bool uses_note(struct regions *regions, const void *work);
CUresult uses_begin_noted(struct use *use, struct regions *regions, unsigned noted);

/* Code came with something that was charged already. */
void uses_count(struct regions *regions, int card);

/* What stands for a name that a module or library is asked for. */
const void *uses_named(const void *owner, const char *name);

/* Handles may be others' now. */
void uses_forget(void);

#endif
