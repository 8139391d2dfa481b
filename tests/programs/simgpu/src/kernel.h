/* Kernels. What a kernel does is take time; its name says how much:
 *
 *     spin_us, spin_ns, spin_ms    as much as its first parameter, a 64-bit integer, says
 *     anything_us_200              200 us (also _ns_, _ms_)
 *     any other name               the card's kernel_ns
 *
 * That is the time of one wave: the blocks that fit on the card at once. More blocks take more
 * waves; fewer leave SMs to the kernels of other streams.
 *
 * Words of its name may say how much memory its code takes, and how many bytes each of its threads has of
 * its own: anything_code_300k, 300 KiB; anything_local_4096. One that begins with fault_ reads where it
 * must not. */
#ifndef SIM_KERNEL_H
#define SIM_KERNEL_H

#include "code.h"

enum { FUNCTION_NAME = 128, FUNCTION_ATTRIBUTES = 16, FUNCTION_LOCAL_BYTES = 3 };

struct CUfunc_st {
    uint32_t magic;
    char name[FUNCTION_NAME];
    CUmodule module;   /* NULL: a library's kernel, which differs in each context */
    CUlibrary library; /* NULL: a function of a module */
    uint64_t fixed_ns; /* ns of one wave; 0: not given by the name */
    uint64_t unit_ns;  /* unit of the first parameter (ns); 0: it is not a time */
    int attributes[FUNCTION_ATTRIBUTES];
    int block[3]; /* for the old launch functions: set by cuFuncSetBlockShape ... */
    unsigned char old_parameter[8];
    bool faults;
    uint64_t code_bytes; /* 0: not given by the name */
    struct code code;
    _Atomic bool launched;
    CUfunction next;
};

CUresult function_check(CUfunction function);
/* Loads its code to the card if necessary: for a library's kernel, in `context` or, if that is
 * NULL, in the current one. */
CUresult function_load(CUfunction function, CUcontext context);
void function_unload(CUfunction function);
/* Returns the kernel of that name, which is made at the first call. */
CUfunction function_new(const char *name);

#endif
