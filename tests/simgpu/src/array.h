/* Arrays: shaped memory without an address of its own. */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "memory.h"

struct CUarray_st {
    uint32_t magic;
    CUDA_ARRAY3D_DESCRIPTOR shape; /* with zeros where it has no such dimension */
    struct allocation *memory;     /* of a level: its mipmapped array's */
    char *base;
    uint64_t element, pitch, slice; /* bytes */
    CUmipmappedArray owner;
};

CUresult array_check(CUarray array);
/* Bytes of an array of that shape, laid out as below; 0 for a shape that there is not. */
uint64_t array_layout(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR *shape);

#endif
