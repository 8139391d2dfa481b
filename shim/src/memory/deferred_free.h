/*
 * Memory that did not come from a pool and was freed in stream order. It exists until the stream
 * reaches the free, so it stays charged until then.
 */
#ifndef MIZAR_DEFERRED_FREE_H
#define MIZAR_DEFERRED_FREE_H

#include "base/cuda_api.h"
#include "memory/alloc_table.h"
#include "region/regions.h"

/*
 * Records a free that the driver has put into the stream. If `ours`, the driver was not asked to:
 * the shim frees the memory in the first deferred_free_settle() after the stream has reached this
 * point. Returns false if that point cannot be determined: then memory that is `ours` is not freed,
 * and other memory stays charged.
 */
bool deferred_free_add(struct regions *regions, CUstream stream, CUdeviceptr pointer,
               const struct alloc *alloc, bool ours);

/* Whether any frees are deferred. */
static inline bool deferred_free_any(struct regions *regions) {
    return __atomic_load_n(&regions->process->deferred, __ATOMIC_RELAXED) != NULL;
}

/* Gives back the memory of frees that streams have passed. Returns whether there was any. */
bool deferred_free_settle(struct regions *regions);

/*
 * Sets whether the context (NULL: any) may be ending. While it may, frees of its memory or in its
 * streams are not touched. Returns when no thread is freeing any of that memory.
 */
void deferred_free_rest(struct regions *regions, CUcontext context, bool rests);

/* Gives back the charges of a context that is gone, with its streams and its memory. */
void deferred_free_context_gone(struct regions *regions, CUcontext context);

#endif
