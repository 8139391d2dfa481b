/*
 * Memory that came from elsewhere. It is there until its handle is destroyed and all that was mapped
 * from it is freed, in whatever order: each of these has an entry in the table of allocations that
 * names the import, and the last one to go gives the charge back.
 */
#ifndef MIZAR_IMPORTS_H
#define MIZAR_IMPORTS_H

#include "base/cuda_api.h"
#include "region/regions.h"

/* The number of a new import, which has its handle and what was reserved; 0: no memory. */
uint64_t imports_add(struct regions *regions, int card, uint64_t bytes);

/* The number of the handle's import, which something more is mapped from; 0: nobody knows it. */
uint64_t imports_join(struct regions *regions, CUexternalMemory memory);

/* One of those that the import was there for is gone. */
void imports_leave(struct regions *regions, uint64_t number);

#endif
