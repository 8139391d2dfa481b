#include "base/proc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/kept_directory.h"
#include "base/sys.h"

#define PF_EXITING 0x4
#define MARK SIGIO

static struct kept_directory kept = KEPT_NONE;

void proc_keep(void) {
    kept_directory_open(&kept, "/proc");
}

static int open_by_path(const char *name, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s", name);
    return sys_open(path, flags);
}

/*
 * Opens an entry of this process ("self/..."), preferring the kept /proc, since the program may
 * have changed the path.
 */
static int open_own(const char *name, int flags) {
    int fd = kept_directory_entry(&kept, name, flags);
    return fd >= 0 ? fd : open_by_path(name, flags);
}

/*
 * Opens an entry of another process, preferring the path: the /proc of this process's PID
 * namespace, by which PIDs count, may have been mounted after the kept one was opened.
 */
static int open_of(unsigned pid, const char *name, int flags) {
    char entry[48];
    snprintf(entry, sizeof entry, "%u/%s", pid, name);
    int fd = open_by_path(entry, flags);
    return fd >= 0 ? fd : kept_directory_entry(&kept, entry, flags);
}

/* Closes the descriptor. */
static bool read_text(int fd, char *text, size_t bytes) {
    if (fd < 0) return false;
    long length = sys_read(fd, text, bytes - 1);
    sys_close(fd);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

/* The beginning of field `number`; `text` points to field 3. */
static const char *field(const char *text, int number) {
    for (int i = 3; text && i < number; i++) {
        text = strchr(text, ' ');
        if (text) text++;
    }
    return text ? text : "0";
}

bool proc_stat(unsigned pid, struct proc_stat *stat) {
    char text[1024];
    int fd = pid ? open_of(pid, "stat", O_RDONLY) : open_own("self/stat", O_RDONLY);
    if (!read_text(fd, text, sizeof text)) return false;
    const char *name_end = strrchr(text, ')'); /* the name may contain any character */
    if (!name_end || strlen(name_end) < 3) return false;
    const char *rest = name_end + 2;
    stat->state = *rest;
    stat->flags = strtoul(field(rest, 9), NULL, 10);
    stat->threads = strtoul(field(rest, 20), NULL, 10);
    stat->start_time = strtoul(field(rest, 22), NULL, 10);
    return true;
}

uint64_t proc_pid_namespace(void) {
    char text[64];
    int link = open_own("self/ns/pid", O_PATH | O_NOFOLLOW);
    if (link < 0) return 0;
    long length = SYS(SYS_readlinkat, link, "", text, sizeof text - 1);
    sys_close(link);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *number = strchr(text, '[');
    return number ? strtoul(number + 1, NULL, 10) : 0;
}

/* See time_namespaces(7): each line has a clock, seconds and nanoseconds. */
int64_t proc_clock_shift(void) {
    static const char clock[] = "monotonic";
    char text[256], *end;
    if (!read_text(open_own("self/timens_offsets", O_RDONLY), text, sizeof text)) return 0;
    const char *line = strstr(text, clock);
    if (!line) return 0;
    int64_t seconds = strtol(line + strlen(clock), &end, 10);
    return seconds * 1000000000 + strtol(end, NULL, 10);
}

bool proc_exiting(unsigned pid, uint64_t start_time) {
    struct proc_stat stat;
    if (!proc_stat(pid, &stat) || stat.start_time != start_time) return false;
    /* A zombie whose other threads still run has not closed its files. */
    if (stat.state == 'Z' || stat.state == 'X') return stat.threads > 1;
    return stat.flags & PF_EXITING;
}

/* By system call, since older libcs have no symbol fstat. */
static bool identify(int fd, struct proc_file *file) {
    struct stat stat;
    if (SYS(SYS_fstat, fd, &stat)) return false;
    *file = (struct proc_file){fd, stat.st_dev, stat.st_ino};
    return true;
}

bool proc_file(int fd, struct proc_file *file) {
    return identify(fd, file) && SYS(SYS_fcntl, fd, F_SETSIG, MARK) == 0;
}

bool proc_file_is(const struct proc_file *file) {
    struct proc_file now;
    return identify(file->fd, &now) && now.device == file->device && now.inode == file->inode &&
           SYS(SYS_fcntl, file->fd, F_GETSIG) == MARK;
}
