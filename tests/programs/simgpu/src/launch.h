/* Kernel launches: the work and the memory that a launch needs. */
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "kernel.h"
#include "work.h"

enum { LAUNCH_THREADS_OF_SM = 2048 };

/* Computes the work of a launch. CUDA_ERROR_INVALID_VALUE: a shape that cards do not support. */
CUresult launch_work(const CUDA_KERNEL_NODE_PARAMS *launch, unsigned card, struct work *work);
CUfunction launch_kernel(const CUDA_KERNEL_NODE_PARAMS *launch);
/* Loads the kernel's code and enlarges the stacks in the context (NULL: the current one), as
 * needed. */
CUresult launch_prepare(const CUDA_KERNEL_NODE_PARAMS *launch, CUcontext context);
/* The number of blocks of `threads` threads that one SM can hold at once. */
unsigned launch_resident(unsigned threads);

#endif
