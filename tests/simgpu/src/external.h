#ifndef SIM_EXTERNAL_H
#define SIM_EXTERNAL_H

#include "memory.h"

/* A buffer on it is gone; memory_lock held. */
void external_drop(CUexternalMemory external);

#endif
