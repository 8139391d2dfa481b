/* Copies: translates the descriptions of the entry points into a box of bytes and a copy engine. */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "stream.h"

/* One side of a copy: its first byte, and the distances between rows and between slices. */
struct side {
    char *base;
    uint64_t pitch, slice;
    bool device;
    bool pageable; /* host memory that was not allocated by or registered with the driver */
};

CUresult copy_work(const CUDA_MEMCPY3D *copy, struct work *work, bool *pageable);
/* Appends the copy to the stream. Waits until it is done if host memory is pageable, or if `wait`
 * is set and the copy is not within the device. */
CUresult copy_do(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait);
CUresult set_work(const CUDA_MEMSET_NODE_PARAMS *set, struct work *work);

#endif
