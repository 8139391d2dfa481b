/* Variables of modules: one in PTX has none, any other each that it is asked for. */
#ifndef SIM_VARIABLE_H
#define SIM_VARIABLE_H

#include "module.h"

/* Either of the last two may be NULL. CUDA_ERROR_NOT_FOUND: there is none of that name. */
CUresult variable_find(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes);
/* They go with their module, if its context is still there. */
void variable_end_module(CUmodule module);

#endif
