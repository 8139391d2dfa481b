/* Arrays: shaped memory without an address of its own. */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "physical.h"

struct CUarray_st {
    uint32_t magic;
    CUDA_ARRAY3D_DESCRIPTOR shape; /* with zeros where it has no such dimension */
    struct allocation *memory;     /* NULL: of a level, or of a sparse array, which has ... */
    struct holding *tiles;         /* ... what is mapped into it */
    char *base;                    /* NULL: it is sparse */
    uint64_t element, pitch, slice; /* bytes */
    CUmipmappedArray owner;
};

CUresult array_check(CUarray array);
/* Bytes of an array of that shape, laid out as below; 0 for a shape that there is not. */
uint64_t array_layout(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR *shape);

/* Where what is mapped into it is kept, or NULL: it is no sparse array. */
struct holding **array_tiles(int type, void *resource);

#endif
