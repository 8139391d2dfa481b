/* Host memory that the driver knows of. */
#ifndef SIM_HOST_H
#define SIM_HOST_H

#include "context.h"

struct host_range {
    char *base;
    size_t bytes;
    unsigned flags;
    bool registered; /* the program's own memory */
    CUcontext context;
    struct host_range *next;
};

/* The range that covers the address, or NULL: pageable memory. A copy of the entry is not made:
 * programs must not free what they still ask about. */
const struct host_range *host_find(const void *address);

#endif
