/* How much memory a CUDA array takes: drivers lay it out in blocks and do not tell. */
#ifndef MIZAR_ARRAY_SIZE_H
#define MIZAR_ARRAY_SIZE_H

#include "base/cuda_api.h"

/* Of an array, or of all levels of a mipmapped one. 0 for what is mapped by the program later. */
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

/* Bytes of one element, at most. */
uint64_t array_element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);

#endif
