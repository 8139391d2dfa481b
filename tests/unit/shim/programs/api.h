/*
 * Every hooked function as a program gets it: linked, or by one of the ways to look it up. The test
 * programs call api.cuMemAlloc_v2(...) and run once for each way.
 */
#ifndef API_H
#define API_H

#include <dlfcn.h>

#include "base/cuda_api.h"
#include "fakecuda.h"
#include "mizar_regions.h"

#define MIB ((uint64_t)1 << 20)

/* Not hooked; the same in every way of lookup. */
CUresult cuDeviceGetCount(int *count);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);

struct api {
#define HOOK(library, symbol, base, version, stream) __typeof__(&symbol) symbol;
#include "lookup/hooks_generated.def"
};
extern struct api api;

/* link, dlsym, default, next, versioned, proc, proc_v1 */
void api_load(const char *way);

/* cuInit, and device 0's context made current. */
void api_start(void);
void api_use(CUdevice device); /* keeps asking for the same primary context */

/* The usage region of MIZAR_DIR. */
struct mizar_usage *api_usage(void);
uint64_t api_used(unsigned card);

#endif
