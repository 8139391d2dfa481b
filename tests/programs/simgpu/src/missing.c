#include "missing.h"

#include <stdio.h>
#include <stdlib.h>

int missing(const char *name, int error) {
    if (getenv("SIMGPU_TRACE")) fprintf(stderr, "simgpu: %s is not simulated\n", name);
    return error;
}
