/* A library that is linked with the driver. */
#include "hidden.h"

int hidden_take(size_t bytes) {
    return hidden_take_with(cuInit, cuDevicePrimaryCtxRetain, cuMemAlloc_v2, bytes);
}
