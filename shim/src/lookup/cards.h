/* Which card of the limits a CUDA device or stream is on: by UUID, never by index. */
#ifndef MIZAR_CARDS_H
#define MIZAR_CARDS_H

#include <stdbool.h>

#include "base/cuda_api.h"
#include "region/regions.h"

/* A card number, or CARD_NONE for a device that the limits do not name. */
int cards_of_device(struct regions *regions, CUdevice device);

/* What to answer where there is none: the driver's own error, if it has one for the device. */
CUresult cards_refusal(CUdevice device);

/* The card of the calling thread's context; the driver's own error when there is none. */
CUresult cards_current(struct regions *regions, int *card);

/* The device of the stream's context. */
CUresult cards_stream_device(CUstream stream, CUdevice *device);

/* The stream's context, or NULL where the driver does not tell. */
CUcontext cards_context(CUstream stream);

/*
 * Makes the context current until cards_leave(): an event belongs to the context in which it is
 * made, and must be of that of the streams which record it; memory is freed where it lives.
 */
bool cards_enter(CUcontext context);
void cards_leave(void);

#endif
