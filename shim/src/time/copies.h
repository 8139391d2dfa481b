/*
 * Counts copies and memsets, for each card and direction. They use the copy engines, not the
 * multiprocessors. A count costs two additions to cache lines of the process's own, and no lock.
 *
 * They are counted although they are not limited, because a container can take PCIe bandwidth and
 * the copy engines from its neighbours without limit, and NVML reports their use for the whole card
 * only. These figures (mizar_device_copied_bytes_total) are the only way to find such a container.
 * Every copy is wrapped for its stalls in any case; counting is the smaller part of that cost.
 */
#ifndef MIZAR_COPIES_H
#define MIZAR_COPIES_H

#include "base/cuda_api.h"
#include "time/stream_credit.h"
#include "mizar_regions.h"

#define COPIES_LONG 262144 /* bytes over the bus that take about 10 us */
#define COPIES_LEAST 16384 /* bytes that take as long as the smallest copy, added to each */
#define COPIES_FASTER 32   /* copies within device memory are this many times faster */

/*
 * Whether this copy, with the thread's earlier copies since the function last returned true,
 * stalled the stream long enough to matter. Small copies are summed up, since ending a grant for
 * each of them would make every launch ask for a new one.
 */
static inline bool copies_take_long(enum mizar_copy kind, uint64_t bytes) {
    bool within = kind == MIZAR_COPY_DEVICES || kind == MIZAR_MEMSET;
    stream_credits.copied += COPIES_LEAST + (within ? bytes / COPIES_FASTER : bytes);
    if (__builtin_expect(stream_credits.copied < COPIES_LONG, 1)) return false;
    stream_credits.copied = 0;
    return true;
}

/*
 * Counts `count` copies of `bytes` in total that the driver accepted for the stream of that name
 * (stream_credit.h).
 */
void copies_count(uintptr_t stream, enum mizar_copy kind, uint64_t count, uint64_t bytes);

/* The kind of a copy from memory of type `from` to memory of type `to` (CU_MEMORYTYPE_*). */
enum mizar_copy copies_kind(int to, int from);

/* Total bytes of a batch of copies, or of 3D copies. */
uint64_t copies_sum(const size_t *sizes, size_t count);
uint64_t copies_sum_boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count);

#endif
