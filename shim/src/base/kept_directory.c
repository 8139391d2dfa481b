#include "base/kept_directory.h"

#include <stdbool.h>
#include <sys/stat.h>

#include "base/sys.h"

/*
 * Above the descriptors that scripts use, and below 64, so that the descriptor table need not grow.
 */
#define KEPT_FROM 50

/* By system call, since older libcs have no symbol fstat. */
static bool identify(int fd, struct kept_directory *directory) {
    struct stat stat;
    if (SYS(SYS_fstat, fd, &stat)) return false;
    *directory = (struct kept_directory){fd, stat.st_dev, stat.st_ino};
    return true;
}

int kept_directory_open(struct kept_directory *kept, const char *path) {
    int fd = sys_open(path, O_PATH | O_DIRECTORY);
    if (fd < 0) return fd;
    long moved = SYS(SYS_fcntl, fd, F_DUPFD_CLOEXEC, KEPT_FROM);
    sys_close(fd);
    if (moved >= 0) identify((int)moved, kept);
    return 0;
}

/*
 * Whether the descriptor still is the directory: the program may have closed it and reused its
 * number.
 */
static bool is_kept(const struct kept_directory *kept) {
    struct kept_directory now;
    return kept->fd >= 0 && identify(kept->fd, &now) && now.device == kept->device &&
           now.inode == kept->inode;
}

int kept_directory_entry(const struct kept_directory *kept, const char *name, int flags) {
    if (!is_kept(kept)) return -EBADF;
    return (int)SYS(SYS_openat, kept->fd, name, flags | O_CLOEXEC, 0);
}
