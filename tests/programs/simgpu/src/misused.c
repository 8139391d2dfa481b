/* What a driver would crash for, or worse, ends the program here, so that no test gets past it. */
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

void misused(const char *what) {
    fprintf(stderr, "simgpu: %s was used\n", what);
    abort();
}
