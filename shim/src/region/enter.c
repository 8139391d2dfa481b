#include "region/enter.h"

#include "region/process_slots.h"

CUresult shim_enter(struct regions **regions) {
    *regions = regions_get();
    if (!*regions) return CUDA_ERROR_SYSTEM_NOT_READY;
    if ((*regions)->mode == REGIONS_INERT) {
        *regions = NULL;
        return CUDA_SUCCESS;
    }
    return process_slots_attach(*regions) ? CUDA_SUCCESS : CUDA_ERROR_SYSTEM_NOT_READY;
}

struct regions *shim_known(void) {
    struct regions *regions = regions_get();
    return regions && regions->mode == REGIONS_ACTIVE ? regions : NULL;
}
