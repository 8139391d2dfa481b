/* The clock that all of a node's containers share with the node agent. */
#ifndef MIZAR_CLOCK_H
#define MIZAR_CLOCK_H

#include <stdint.h>

/* The node's CLOCK_MONOTONIC in ns, whatever the process's time namespace; by libc, without a system call. */
uint64_t clock_now(void);

#endif
