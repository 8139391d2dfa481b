/*
 * Loads of code. The driver does not report how much memory they take, so the change of the card's
 * free memory is measured. Neighbours that take memory at the same moment would be included, so no
 * more is charged than an image of that size can need; anything beyond shows in NVML's figure of
 * the container.
 *
 * If code is loaded at its first use, a module load takes little memory. While there is a node
 * agent, nothing is charged for it then: room is reserved as for a page of functions (lazy_code.h),
 * or for as much as was measured, until the agent has asked NVML.
 */
#ifndef MIZAR_LOADS_H
#define MIZAR_LOADS_H

#include "memory/allocation.h"
#include "memory/first_use.h"

struct load {
    struct allocation allocation;
    uint64_t most;  /* the most bytes that it may be charged */
    int64_t before; /* bytes in use on the card beyond the container's account */
    uint32_t moves; /* moves() at that moment */
    bool measuring;
    bool late; /* code is loaded at its first use */
    struct first_use use;
};

/* Bytes of an image in memory (cubin, fat binary or PTX), and of a file; 0 if not known. */
uint64_t loads_image_bytes(const void *image);
uint64_t loads_file_bytes(const char *path);

/*
 * Reserves what loads took so far at most. `image_bytes`: 0 if not known. The caller must return an
 * error to the program. On success with nothing reserved, nothing is counted, as without a current
 * context.
 */
CUresult loads_begin(struct load *load, enum alloc_kind kind, uint64_t image_bytes);

/*
 * To be called after the driver's `result`. Returns OUT_OF_MEMORY if the load took more than is
 * allowed and `undo` has undone it. Without `undo`, or if that fails, it is counted regardless of
 * the limit.
 */
CUresult loads_end(struct load *load, CUresult result, const void *handle, allocation_undo *undo);

#endif
