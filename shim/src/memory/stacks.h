/*
 * Local memory. For each context, the driver has stacks for all threads that can run on the card at
 * once. When a kernel is launched that needs larger stacks than any before, the driver takes more
 * memory and keeps it (CUDA Driver API, CU_LIMIT_STACK_SIZE): hundreds of MiB on a large card. The
 * need can be asked of functions, but by another call for those of libraries (CUkernel), so kinds
 * of handles are remembered.
 */
#ifndef MIZAR_STACKS_H
#define MIZAR_STACKS_H

#include "base/cuda_api.h"
#include "region/regions.h"

enum stacks_kind { STACKS_FUNCTION, STACKS_KERNEL };

/*
 * Notes a handle that the program was given, and its owner, a module or library. A handle counts as
 * new if it last belonged to a function whose owner has ended.
 */
void stacks_note(struct regions *regions, const void *handle, enum stacks_kind kind,
                 const void *owner);

/* Called for each new handle before it is noted: cuda/listeners.c. */
extern void (*const stacks_new_handle)(const void *handle);

/* Forgets a handle that now names something else. */
void stacks_forget(struct regions *regions, const void *handle);

/* The handle's owner; NULL if not known. */
const void *stacks_owner(struct regions *regions, const void *handle);

/*
 * Bytes of stack that each thread of the kernel needs; 0 if that is no more than usual, or not
 * known. Drivers load the kernel's code to answer this.
 */
uint64_t stacks_wanted(struct regions *regions, const void *work);

/*
 * Reserves what the current context's stacks take if each has `each` bytes. Returns false if the
 * limit does not allow it at present.
 */
bool stacks_reserve(struct regions *regions, uint64_t each);

/*
 * Bytes that stacks of `each` bytes take on the device, beyond those that a context's cost
 * includes.
 */
uint64_t stacks_bytes(CUdevice device, uint64_t each);

#endif
