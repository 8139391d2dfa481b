/*
 * A directory that is opened when the library is loaded, and kept open: nothing that the program does
 * later, chroot say, hides what is in it.
 */
#ifndef MIZAR_KEPT_DIRECTORY_H
#define MIZAR_KEPT_DIRECTORY_H

#include <stdint.h>

struct kept_directory {
    int fd; /* -1: not kept */
    uint64_t device, inode;
};

#define KEPT_NONE {.fd = -1}

/* Opens the directory. 0, or -errno where it cannot be opened. */
int kept_directory_open(struct kept_directory *kept, const char *path);

/* Opens an entry of it. -EBADF where the directory is not kept (any more), else -errno. */
int kept_directory_entry(const struct kept_directory *kept, const char *name, int flags);

#endif
