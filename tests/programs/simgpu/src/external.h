#ifndef SIM_EXTERNAL_H
#define SIM_EXTERNAL_H

#include "memory.h"

/* So much of it at an address, in the current context. */
CUresult external_map(CUexternalMemory external, uint64_t offset, uint64_t bytes,
                      struct allocation **made);
/* What was mapped is gone; memory_lock held. */
void external_drop(CUexternalMemory external);

#endif
