/* The driver's entries by name and version; the table is made from driver_symbols.txt. */
#ifndef SIM_ENTRIES_H
#define SIM_ENTRIES_H

#include <stdbool.h>

struct entry {
    const char *base; /* the name without version */
    int since;        /* CUDA version of this entry; 0: not to be had through cuGetProcAddress */
    bool per_thread;
    int (*address)(void);
};

/* Sorted by base, then by version. */
extern const struct entry entries[];
extern const int entry_count;

#endif
