/* What /proc says of a process. */
#ifndef MIZAR_PROC_H
#define MIZAR_PROC_H

#include <stdbool.h>
#include <stdint.h>

struct proc_stat {
    char state;
    uint64_t flags;
    uint64_t threads;
    uint64_t start_time;
};

/* pid 0: this process. */
bool proc_stat(unsigned pid, struct proc_stat *stat);

/* Identifies this process's PID namespace; 0 when /proc does not tell. */
uint64_t proc_pid_namespace(void);

/* The process with that start time is on its way out, but the kernel has not closed its files. */
bool proc_exiting(unsigned pid, uint64_t start_time);

#endif
