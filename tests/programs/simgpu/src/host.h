/* Host memory that was allocated by the driver or registered with it. */
#ifndef SIM_HOST_H
#define SIM_HOST_H

#include "context.h"

struct host_range {
    char *base;
    size_t bytes;
    unsigned flags;
    bool registered; /* allocated by the program and registered */
    CUcontext context;
    struct host_range *next;
};

/* The range that contains the address; NULL for pageable memory. The range is not copied: a program
 * must not free memory that it is still asking about. */
const struct host_range *host_find(const void *address);

#endif
