/*
 * How much memory a CUDA array takes. Drivers lay arrays out in blocks, and do not report their
 * size.
 */
#ifndef MIZAR_ARRAY_SIZE_H
#define MIZAR_ARRAY_SIZE_H

#include "base/cuda_api.h"

/*
 * Bytes of an array, or of all levels of a mipmapped one, at most. 0 if the program maps its memory
 * later.
 */
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

/* The most bytes that one element may take. */
uint64_t array_element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);

#endif
