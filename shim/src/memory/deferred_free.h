/*
 * Plain memory that was freed in the order of a stream. It is there until the stream has come so
 * far, so it stays charged until then.
 */
#ifndef MIZAR_DEFERRED_FREE_H
#define MIZAR_DEFERRED_FREE_H

#include "base/cuda_api.h"
#include "memory/alloc_table.h"
#include "region/regions.h"

/*
 * The driver has just put the free of what lies at `pointer` into the stream. Or it does not do so
 * (`ours`): then it is freed when the stream has come so far, as soon as somebody looks. False: nobody
 * could tell when that is; what is ours to free was left as it is, all else stays charged.
 */
bool deferred_free_add(struct regions *regions, CUstream stream, CUdeviceptr pointer,
               const struct alloc *alloc, bool ours);

static inline bool deferred_free_any(struct regions *regions) {
    return __atomic_load_n(&regions->process->deferred, __ATOMIC_RELAXED) != NULL;
}

/* Gives back what streams have passed. True: there was some. */
bool deferred_free_settle(struct regions *regions);

/*
 * While the context (NULL: any) may be ending, what was freed there, or in one of its streams, is left
 * alone. Returns when no thread is freeing any of it.
 */
void deferred_free_rest(struct regions *regions, CUcontext context, bool rests);

/* The context is gone, with its streams and its memory. */
void deferred_free_context_gone(struct regions *regions, CUcontext context);

#endif
