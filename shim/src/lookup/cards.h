/* Finds the card of the limits for a CUDA device or stream, by its UUID and never by index. */
#ifndef MIZAR_CARDS_H
#define MIZAR_CARDS_H

#include <stdbool.h>

#include "base/cuda_api.h"
#include "region/regions.h"

/* The device's card number, or CARD_NONE if the limits do not name it. */
int cards_of_device(struct regions *regions, CUdevice device);

/*
 * The result for the program if the device has no card: the driver's own error for an invalid
 * device, else CUDA_ERROR_OUT_OF_MEMORY.
 */
CUresult cards_refusal(CUdevice device);

/*
 * Sets *card to the card of the calling thread's context. Returns the driver's error if there is no
 * context; *card is CARD_NONE then.
 */
CUresult cards_current(struct regions *regions, int *card);

/* The device that has memory of this location, of which it may be a part only; -1: none has. */
CUdevice cards_located(const CUmemLocation *location);

/* Sets *device to the device of the stream's context. Returns the driver's result. */
CUresult cards_stream_device(CUstream stream, CUdevice *device);

/* The stream's context; NULL if the driver does not report it. */
CUcontext cards_context(CUstream stream);

/*
 * Makes the context current until cards_leave(). Returns false, without a change, if that fails. An
 * event must be made in the context of the streams that record it, and memory must be freed in its
 * own context.
 */
bool cards_enter(CUcontext context);
void cards_leave(void);

#endif
