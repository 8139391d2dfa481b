/* Copies, from what the entries describe to a box of bytes and a copy engine. */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "stream.h"

/* One side of a copy: where it begins and how far its rows and slices are apart. */
struct side {
    char *base;
    uint64_t pitch, slice;
    bool device;
    bool pageable; /* host memory that the driver does not know */
};

CUresult copy_work(const CUDA_MEMCPY3D *copy, struct work *work, bool *pageable);
/* Append it, and wait where the caller may not go on before it is done. */
CUresult copy_do(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait);
CUresult set_work(const CUDA_MEMSET_NODE_PARAMS *set, struct work *work);

#endif
