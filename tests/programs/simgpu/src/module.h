/* Modules, and libraries: a library has no context, and gets a module for each context that uses
 * it. */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "image.h"

struct CUmod_st {
    uint32_t magic;
    CUcontext context;
    uint64_t context_id; /* the context's id at that time: it may have ended and been opened again */
    struct code code; /* all code of the module, unless functions are loaded one by one */
    bool lazy;
    struct image image;
    struct variable *variables;
    CUlibrary library; /* its library, or NULL */
    CUmodule next;     /* of the same library */
};

/* Whether code is loaded at its first use (true) or with its module (false). */
bool module_lazy(void);
CUresult module_new(CUcontext context, const void *data, bool lazy, CUmodule *module);
void module_end(CUmodule module);
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *data);
/* Whether the context that the module was loaded into still exists. */
bool module_is_there(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
/* Sets *function to the function of a library's kernel in the context. */
CUresult library_function(CUkernel kernel, CUcontext context, CUfunction *function);

#endif
