/*
 * Local memory. For each context a driver keeps stacks for all threads that fit on the card at once. A
 * kernel that needs more of each than any before makes it take more when it is launched, and it keeps that
 * (CUDA Driver API, CU_LIMIT_STACK_SIZE): hundreds of MiB on a large card. Functions tell what they need, but
 * those of libraries (CUkernel) by another call than others, so kinds of handles are remembered.
 */
#ifndef MIZAR_STACKS_H
#define MIZAR_STACKS_H

#include "base/cuda_api.h"
#include "region/regions.h"

enum stacks_kind { STACKS_FUNCTION, STACKS_KERNEL };

/*
 * The program was given that handle; its owner is a module or library. One that was another function's,
 * whose owner has ended, is new.
 */
void stacks_note(struct regions *regions, const void *handle, enum stacks_kind kind,
                 const void *owner);

/* Told of each handle that is new, before it is noted as known: cuda/listeners.c. */
extern void (*const stacks_new_handle)(const void *handle);

/* The handle is of something else now. */
void stacks_forget(struct regions *regions, const void *handle);

/* NULL where nobody knows. */
const void *stacks_owner(struct regions *regions, const void *handle);

/*
 * Bytes that each thread of the kernel needs; 0 where it is no more than usual, or not to be known. Drivers
 * load its code for the answer.
 */
uint64_t stacks_wanted(struct regions *regions, const void *work);

/* Reserves what the current context's stacks take once each is so large. False: not allowed, just now. */
bool stacks_reserve(struct regions *regions, uint64_t each);

/* What stacks of that size take on the device, beyond what is part of a context. */
uint64_t stacks_bytes(CUdevice device, uint64_t each);

#endif
