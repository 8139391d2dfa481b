/* Facts about processes from /proc, and about this process's files. */
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

/*
 * Keeps /proc open, so that its entries stay readable if the program hides it later, such as by
 * chroot. /proc/self would not do, since in a forked child it would still be the parent's.
 */
void proc_keep(void);

/* Reads the process's stat; pid 0 means this process. Returns false if /proc does not have it. */
bool proc_stat(unsigned pid, struct proc_stat *stat);

/* The inode number of this process's PID namespace; 0 if /proc does not have it. */
uint64_t proc_pid_namespace(void);

/*
 * ns by which CLOCK_MONOTONIC in this process's time namespace is ahead of the node's; 0 if it is
 * not shifted or /proc does not have it.
 */
int64_t proc_clock_shift(void);

/*
 * Whether the process with that start time is exiting and the kernel has not closed all its files
 * yet.
 */
bool proc_exiting(unsigned pid, uint64_t start_time);

/*
 * An open file, identified by its descriptor, device and inode. NVIDIA's files have all the same
 * device and inode, so the file is marked in addition, by its signal for input (F_SETSIG), which is
 * not used otherwise. A file that is opened later under the same number has no mark.
 */
struct proc_file {
    int fd;
    uint64_t device, inode;
};

/* Identifies and marks the file. Returns false if it does not exist or cannot be marked. */
bool proc_file(int fd, struct proc_file *file);

/* Whether the descriptor still refers to that file. */
bool proc_file_is(const struct proc_file *file);

#endif
