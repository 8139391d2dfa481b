/* CUDA arrays: memory with a shape, and without an address that programs can see. */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "physical.h"

struct CUarray_st {
    uint32_t magic;
    CUDA_ARRAY3D_DESCRIPTOR shape; /* unused dimensions are 0 */
    struct allocation *memory;     /* NULL for a level of a mipmapped array and for a sparse
                                      array, which has ... */
    struct holding *tiles;         /* ... the memory mapped into its tiles */
    char *base;                    /* NULL for a sparse array */
    uint64_t element, pitch, slice; /* bytes */
    CUmipmappedArray owner;
};

CUresult array_check(CUarray array);
/* Fills in the layout for `shape` and returns its bytes; 0 if the shape is invalid. */
uint64_t array_layout(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR *shape);

/* The list of memory mapped into a sparse array; NULL if the resource is no sparse array. */
struct holding **array_tiles(int type, void *resource);

#endif
