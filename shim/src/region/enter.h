/* Where every wrapper begins: whether there is anything to count or limit here. */
#ifndef MIZAR_ENTER_H
#define MIZAR_ENTER_H

#include "base/cuda_api.h"
#include "region/regions.h"

/*
 * Every wrapper that takes memory or answers for it begins with this. *regions is NULL where there
 * is no Mizar. An error when there is, but limits cannot be kept.
 */
CUresult shim_enter(struct regions **regions);

/* The same for wrappers that only give back: NULL when there is nothing to be known. */
struct regions *shim_known(void);

#endif
