/* What a runtime keeps with a context: a value for each key, until the context ends. */
#ifndef SIM_STORAGE_H
#define SIM_STORAGE_H

#include "context.h"

typedef void (*storage_gone)(CUcontext context, void *key, void *value);

/* Where `context` is NULL, the current one is meant. `gone` is called when the context ends. */
CUresult storage_put(CUcontext context, void *key, void *value, storage_gone gone);
CUresult storage_remove(CUcontext context, void *key);
/* CUDA_ERROR_INVALID_HANDLE: nothing was put there. */
CUresult storage_get(void **value, CUcontext context, void *key);

#endif
