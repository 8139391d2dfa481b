/* Kernels. What a kernel does is take time; its name says how much:
 *
 *     spin_us, spin_ns, spin_ms    as much as its first parameter, a 64-bit integer, says
 *     anything_us_200              200 us (also _ns_, _ms_)
 *     any other name               the card's kernel_ns
 *
 * That is the time of one wave: the blocks that fit on the card at once. More blocks take more
 * waves; fewer leave SMs to the kernels of other streams. */
#ifndef SIM_FUNCTION_H
#define SIM_FUNCTION_H

#include "context.h"

enum { FUNCTION_NAME = 128, FUNCTION_ATTRIBUTES = 16 };

struct CUfunc_st {
    uint32_t magic;
    char name[FUNCTION_NAME];
    CUmodule module;
    CUlibrary library;
    uint64_t fixed_ns; /* 0: not given by the name */
    uint64_t unit_ns;  /* of the first parameter; 0: it does not tell */
    int attributes[FUNCTION_ATTRIBUTES];
    int block[3]; /* of the launches of old: cuFuncSetBlockShape ... */
    unsigned char old_parameter[8];
    CUfunction next;
};

CUresult function_check(CUfunction function);
/* Brings the library's code to the card, as its first kernel to be used does. */
CUresult library_load(CUlibrary library);
/* A kernel of that name, made when first asked for. */
CUfunction function_new(const char *name);

#endif
