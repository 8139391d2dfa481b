/* cuInit, which fails if the process's limits cannot be kept. */
#include "base/message.h"
#include "lookup/resolve.h"
#include "region/enter.h"

#define OLDEST_CUDA 11000 /* drivers of branch 450 */

/*
 * Refuses a driver on which the limits were not tested. As it is never initialized, its other calls
 * fail as well.
 */
static CUresult refuse_old_driver(void) {
    static int told;
    int version;
    CUresult result = REAL(cuDriverGetVersion)(&version);
    if (result != CUDA_SUCCESS || version >= OLDEST_CUDA) return result;
    message_once(&told,
                 "CUDA is refused: this node's driver supports CUDA %d.%d, but sharing a card needs a driver for "
                 "CUDA 11.0 (450) or newer; such a driver also runs programs built with an older CUDA",
                 version / 1000, version % 1000 / 10);
    return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}

EXPORT CUresult cuInit(unsigned flags) {
    struct regions *regions;
    CUresult result = shim_enter(&regions);
    if (result == CUDA_SUCCESS && regions) result = refuse_old_driver();
    return result == CUDA_SUCCESS ? REAL(cuInit)(flags) : result;
}
