/*
 * Code that is loaded takes memory that the driver does not tell of, so it is measured: what the
 * card has less afterwards. Neighbours that take memory at that moment would be measured with it, so
 * no more is charged than an image of that size can well need; the rest is left to what NVML says
 * of the container.
 *
 * Where code comes when it is first used, little comes with the load. While there is a node agent, nothing is
 * charged for it: room is kept as for a page of functions (lazy_code.h), or for as much as was measured, until the
 * agent has asked NVML.
 */
#ifndef MIZAR_LOADS_H
#define MIZAR_LOADS_H

#include "memory/allocation.h"
#include "memory/first_use.h"

struct load {
    struct allocation allocation;
    uint64_t most;  /* bytes that it may be charged */
    int64_t before; /* in use on the card beyond what the container knew of */
    uint32_t moves; /* of the container's account until then */
    bool measuring;
    bool late; /* code comes when it is used */
    struct first_use use;
};

/* Bytes of an image in memory (cubin, fat binary or PTX), and of a file; 0: not to be known. */
uint64_t loads_image_bytes(const void *image);
uint64_t loads_file_bytes(const char *path);

/*
 * Reserves what code took so far at most. An error is to be returned; success with nothing reserved
 * means that nothing is counted, as where no context is current.
 */
CUresult loads_begin(struct load *load, enum alloc_kind kind, uint64_t image_bytes);

/*
 * After the driver's `result`. OUT_OF_MEMORY: it was more than is allowed, and `undo` was called;
 * without one it is counted all the same.
 */
CUresult loads_end(struct load *load, CUresult result, const void *handle, allocation_undo *undo);

#endif
