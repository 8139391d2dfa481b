#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "function.h"
#include "work.h"

enum { LAUNCH_THREADS_OF_SM = 2048 };

/* What a launch asks of a card. CUDA_ERROR_INVALID_VALUE: a shape that no card takes. */
CUresult launch_work(const CUDA_KERNEL_NODE_PARAMS *launch, unsigned card, struct work *work);
CUfunction launch_kernel(const CUDA_KERNEL_NODE_PARAMS *launch);
/* Brings to the context what the kernel needs there: its code, and stacks. */
CUresult launch_prepare(const CUDA_KERNEL_NODE_PARAMS *launch, CUcontext context);
/* Blocks of that many threads that an SM holds at once. */
unsigned launch_resident(unsigned threads);

#endif
