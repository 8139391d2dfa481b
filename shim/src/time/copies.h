/*
 * Copies and memsets are counted, for each card and in each direction: they keep the copy engines
 * busy, not what runs kernels. Two additions to cache lines of the process' own, no lock.
 *
 * Why, if nobody limits them: PCIe and the copy engines are the one thing of a card that a container can take
 * from its neighbours without limit, and NVML tells of them for the whole card only. The node's operator can
 * find the container by these figures (mizar_device_copied_bytes_total), and by nothing else. Every copy is
 * wrapped anyway, for what its stream stands still (stalls); of that, this is the smaller part.
 */
#ifndef MIZAR_COPIES_H
#define MIZAR_COPIES_H

#include "base/cuda_api.h"
#include "time/stream_credit.h"
#include "mizar_regions.h"

#define COPIES_LONG 262144 /* bytes over the bus: 10 us or so */
#define COPIES_LEAST 16384 /* what the smallest takes as long as */
#define COPIES_FASTER 32   /* within device memory */

/*
 * Whether the stream stands still for it so long that it counts: for many small ones a launch would
 * have to ask each time, but together they count as well.
 */
static inline bool copies_take_long(enum mizar_copy kind, uint64_t bytes) {
    bool within = kind == MIZAR_COPY_DEVICES || kind == MIZAR_MEMSET;
    stream_credits.copied += COPIES_LEAST + (within ? bytes / COPIES_FASTER : bytes);
    if (__builtin_expect(stream_credits.copied < COPIES_LONG, 1)) return false;
    stream_credits.copied = 0;
    return true;
}

/* The driver took `count` copies of `bytes` together for the stream of that name (stream_credit.h). */
void copies_count(uintptr_t stream, enum mizar_copy kind, uint64_t count, uint64_t bytes);

/* Between memory of these types, CU_MEMORYTYPE_*. */
enum mizar_copy copies_kind(int to, int from);

/* Bytes of a batch. */
uint64_t copies_sum(const size_t *sizes, size_t count);
uint64_t copies_sum_boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count);

#endif
