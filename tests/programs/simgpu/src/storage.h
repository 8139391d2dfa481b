/* Context-local storage: a value for each key, which the runtime keeps with a context until it
 * ends. */
#ifndef SIM_STORAGE_H
#define SIM_STORAGE_H

#include "context.h"

typedef void (*storage_gone)(CUcontext context, void *key, void *value);

/* Stores the value. `context` NULL means the current one. `gone` is called when the context
 * ends. */
CUresult storage_put(CUcontext context, void *key, void *value, storage_gone gone);
CUresult storage_remove(CUcontext context, void *key);
/* Returns CUDA_ERROR_INVALID_HANDLE if there is no value for the key. */
CUresult storage_get(void **value, CUcontext context, void *key);

#endif
