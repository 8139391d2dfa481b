#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "function.h"
#include "work.h"

/* What a launch asks of a card. CUDA_ERROR_INVALID_VALUE: a shape that no card takes. */
CUresult launch_work(const CUDA_KERNEL_NODE_PARAMS *launch, unsigned card, struct work *work);
CUfunction launch_kernel(const CUDA_KERNEL_NODE_PARAMS *launch);
/* Blocks of that many threads that an SM holds at once. */
unsigned launch_resident(unsigned threads);

#endif
