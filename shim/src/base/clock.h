/* The clock that all containers of a node share with the node agent. */
#ifndef MIZAR_CLOCK_H
#define MIZAR_CLOCK_H

#include <stdint.h>

/* The node's CLOCK_MONOTONIC in ns, in any time namespace. Read by libc without a system call. */
uint64_t clock_now(void);

#endif
