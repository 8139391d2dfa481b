/* The table of the driver's entry points by name and version, generated from driver_symbols.txt. */
#ifndef SIM_ENTRIES_H
#define SIM_ENTRIES_H

#include <stdbool.h>

struct entry {
    const char *base; /* the name without a version */
    int since;        /* CUDA version since which it exists; 0: not in cuGetProcAddress */
    bool per_thread;
    int (*address)(void);
};

/* Sorted by base, then by version. */
extern const struct entry entries[];
extern const int entry_count;

#endif
