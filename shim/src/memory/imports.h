/*
 * Imported external memory, and memory of other processes that was opened. The former exists until its
 * handle is destroyed and all objects mapped from it are freed, in any order; the latter until it was
 * closed as often as it was opened. Each of these has an entry in the table of allocations that names the
 * import, and the end of the last one gives the charge back.
 */
#ifndef MIZAR_IMPORTS_H
#define MIZAR_IMPORTS_H

#include "base/cuda_api.h"
#include "region/regions.h"

/*
 * Adds an import whose bytes are charged, with its handle as the first holder. Returns its number;
 * 0 if there is no memory.
 */
uint64_t imports_add(struct regions *regions, int card, uint64_t bytes);

/*
 * Adds a holder to the import of that key in the table of allocations, for an object mapped from its
 * handle or one more opening. Returns the import's number; 0 if it is not known.
 */
uint64_t imports_join(struct regions *regions, uint64_t key);

/* Removes a holder of the import, and gives the charge back after the last one. */
void imports_leave(struct regions *regions, uint64_t number);

#endif
