/*
 * Copies and memsets are counted, for each card and in each direction: they keep the copy engines
 * busy, not what runs kernels. Two additions to cache lines of the process' own, no lock.
 */
#ifndef MIZAR_COPIES_H
#define MIZAR_COPIES_H

#include "cuda_api.h"
#include "mizar_regions.h"

/* The driver took `count` copies of `bytes` together for the stream of that name (lanes.h). */
void copies_count(uintptr_t stream, enum mizar_copy kind, uint64_t count, uint64_t bytes);

/* Between memory of these types, CU_MEMORYTYPE_*. */
enum mizar_copy copies_kind(int to, int from);

/* Bytes of a batch. */
uint64_t copies_sum(const size_t *sizes, size_t count);
uint64_t copies_sum_boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count);

#endif
