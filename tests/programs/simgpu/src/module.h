/* Modules, and libraries: modules without a context, of which each context gets one of its own. */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "image.h"

struct CUmod_st {
    uint32_t magic;
    CUcontext context;
    uint64_t context_id; /* its id then: it may have ended since, and begun again */
    struct code code; /* all of it; unless each function brings its own */
    bool lazy;
    struct image image;
    struct variable *variables;
    CUlibrary library; /* whose it is, or NULL */
    CUmodule next;     /* of the library's */
};

/* Does code come to the card when it is first used, or when it is loaded? */
bool module_lazy(void);
CUresult module_new(CUcontext context, const void *data, bool lazy, CUmodule *module);
void module_end(CUmodule module);
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *data);
/* Is the context that it was loaded into still there? */
bool module_is_there(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
/* A library's kernel, as a function of the context. */
CUresult library_function(CUkernel kernel, CUcontext context, CUfunction *function);

#endif
