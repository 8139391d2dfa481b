/* External memory: imported memory of other APIs. */
#ifndef SIM_EXTERNAL_H
#define SIM_EXTERNAL_H

#include "memory.h"

/* Maps `bytes` of it from `offset` at an address in the current context. */
CUresult external_map(CUexternalMemory external, uint64_t offset, uint64_t bytes,
                      struct allocation **made);
/* To be called when a mapping is gone. The caller holds memory_lock. */
void external_drop(CUexternalMemory external);

#endif
