/* Ends a program that uses a destroyed object. A real driver would crash or corrupt memory, which a
 * test might not notice. */
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

void misused(const char *what) {
    fprintf(stderr, "simgpu: %s was used\n", what);
    abort();
}
