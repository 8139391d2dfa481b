/* Memory pools for stream-ordered allocation. */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "memory.h"

/* Sizes are bytes. */
struct CUmemPoolHandle_st {
    uint32_t magic;
    CUdevice device;
    bool ending;
    uint64_t most, threshold, reserved, used, reserved_high, used_high;
    int follow_events, opportunistic, internal_dependencies;
    struct allocation *cache;
    CUmemoryPool next;
};

CUmemoryPool pool_create(const CUmemPoolProps *props);
void pool_end(CUmemoryPool pool);
bool pool_valid(CUmemoryPool pool);
CUmemoryPool pool_default(CUdevice device);
CUmemoryPool pool_chosen(CUdevice device);
void pool_choose(CUdevice device, CUmemoryPool pool);
void pool_trim(CUmemoryPool pool, uint64_t keep);

#endif
