/*
 * A directory that is opened when the library is loaded and kept open, so that the program cannot
 * hide its entries later, such as by chroot.
 */
#ifndef MIZAR_KEPT_DIRECTORY_H
#define MIZAR_KEPT_DIRECTORY_H

#include <stdint.h>

struct kept_directory {
    int fd; /* -1: not kept */
    uint64_t device, inode;
};

#define KEPT_NONE {.fd = -1}

/* Opens the directory. Returns 0, or -errno if it cannot be opened. */
int kept_directory_open(struct kept_directory *kept, const char *path);

/*
 * Opens an entry of the directory. Returns a descriptor, -EBADF if the directory is not kept open
 * (any more), or another -errno.
 */
int kept_directory_entry(const struct kept_directory *kept, const char *name, int flags);

#endif
