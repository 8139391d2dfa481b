/* Occupancy: how many blocks an SM can hold, determined by their number of threads only. */
#include "launch.h"

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads,
                                                         size_t shared) {
    (void)shared;
    TRY(function_load(f, NULL));
    if (!blocks || threads < 1) return CUDA_ERROR_INVALID_VALUE;
    *blocks = (int)launch_resident((unsigned)threads);
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f,
                                                                  int threads, size_t shared,
                                                                  unsigned flags) {
    (void)flags;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared);
}

typedef size_t (*shared_of)(int threads);

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, shared_of size,
                                              size_t shared, int limit) {
    CUdevice device;
    (void)size, (void)shared;
    TRY(function_load(f, NULL));
    TRY(context_device(&device));
    if (!grid || !block) return CUDA_ERROR_INVALID_VALUE;
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    uint64_t sms = driver.sim.state->cards[driver.card[device]].sm_count;
    *grid = (int)(sms * launch_resident((unsigned)*block));
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f,
                                                       shared_of size, size_t shared, int limit,
                                                       unsigned flags) {
    (void)flags;
    return cuOccupancyMaxPotentialBlockSize(grid, block, f, size, shared, limit);
}
