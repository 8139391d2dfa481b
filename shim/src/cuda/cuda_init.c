/* cuInit: the place where a process learns that its limits cannot be kept. */
#include "lookup/resolve.h"
#include "region/enter.h"

EXPORT CUresult cuInit(unsigned flags) {
    struct regions *regions;
    CUresult result = shim_enter(&regions);
    return result == CUDA_SUCCESS ? REAL(cuInit)(flags) : result;
}
