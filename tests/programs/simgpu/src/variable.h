/* Variables of modules. A PTX module has none; any other module has every variable that is asked
 * for. */
#ifndef SIM_VARIABLE_H
#define SIM_VARIABLE_H

#include "module.h"

/* Either of `pointer` and `bytes` may be NULL. CUDA_ERROR_NOT_FOUND: the module has no such
 * variable. */
CUresult variable_find(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes);
/* Frees the variables of a module that ends, if its context still exists. */
void variable_end_module(CUmodule module);

#endif
