/* The beginning of every wrapper, which finds out whether there is anything to count or limit. */
#ifndef MIZAR_ENTER_H
#define MIZAR_ENTER_H

#include "base/cuda_api.h"
#include "region/regions.h"

/*
 * To be called first by every wrapper that takes memory or reports on it. Sets *regions to NULL and
 * returns success if there is no Mizar here. Returns CUDA_ERROR_SYSTEM_NOT_READY if there is, but
 * limits cannot be kept.
 */
CUresult shim_enter(struct regions **regions);

/*
 * To be called first by wrappers that only give memory back. Returns the regions; NULL if nothing
 * is counted.
 */
struct regions *shim_known(void);

#endif
