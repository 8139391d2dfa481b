/* What the kernel says of a process, and of this one's files. */
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
 * Keeps /proc open, so that a program that hides it from itself later, by chroot say, still finds what is
 * said of its own process. /proc and not /proc/self: that would stay the parent's in a forked child.
 */
void proc_keep(void);

/* pid 0: this process. False where /proc does not tell. */
bool proc_stat(unsigned pid, struct proc_stat *stat);

/* Identifies this process's PID namespace; 0 when /proc does not tell. */
uint64_t proc_pid_namespace(void);

/* By how many ns CLOCK_MONOTONIC is ahead in this process's time namespace of what it is on the node;
 * 0 where it is not shifted, or where /proc does not tell. */
int64_t proc_clock_shift(void);

/* The process with that start time is on its way out, but the kernel has not closed its files. */
bool proc_exiting(unsigned pid, uint64_t start_time);

/*
 * An open file that is known by its descriptor. NVIDIA's are all of one device, so it is marked with
 * the signal that would tell of input on it (nobody asks for one): what is opened later under the
 * same number has no mark.
 */
struct proc_file {
    int fd;
    uint64_t device, inode;
};

/* Marks it. False: there is no such file, or it cannot be marked. */
bool proc_file(int fd, struct proc_file *file);

/* The descriptor is still that file. */
bool proc_file_is(const struct proc_file *file);

#endif
