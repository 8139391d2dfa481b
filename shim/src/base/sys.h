/*
 * The few system calls that the shim makes. They bypass libc's functions, which the program or
 * another preloaded library may have replaced. They return -errno on failure, and do not change
 * errno.
 */
#ifndef MIZAR_SYS_H
#define MIZAR_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static inline long sys_result(long value, int saved) {
    long result = value == -1 ? -errno : value;
    errno = saved;
    return result;
}

#define SYS(...) ({ int saved_ = errno; sys_result(syscall(__VA_ARGS__), saved_); })

static inline int sys_open(const char *path, int flags) {
    return (int)SYS(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0);
}

static inline void sys_close(int fd) {
    SYS(SYS_close, fd);
}

static inline long sys_read(int fd, void *buffer, size_t bytes) {
    return SYS(SYS_read, fd, buffer, bytes);
}

static inline long sys_size(int fd) {
    return SYS(SYS_lseek, fd, 0, SEEK_END);
}

/* Maps memory or a file. Returns NULL on failure. */
static inline void *sys_map(size_t bytes, int protection, int flags, int fd) {
    long address = SYS(SYS_mmap, 0, bytes, protection, flags, fd, 0);
    return address < 0 && address > -4096 ? NULL : (void *)address;
}

static inline void sys_unmap(void *address, size_t bytes) {
    SYS(SYS_munmap, address, bytes);
}

/* Zeroed memory that a forked child finds zeroed again, or NULL. */
static inline void *sys_map_wiped(size_t bytes) {
    void *memory = sys_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!memory) return NULL;
    if (SYS(SYS_madvise, memory, bytes, MADV_WIPEONFORK) == 0) return memory;
    sys_unmap(memory, bytes);
    return NULL;
}

/* Sleeps for `us` microseconds, less than a second. */
static inline void sys_sleep(long us) {
    const struct timespec span = {0, us * 1000};
    SYS(SYS_nanosleep, &span, NULL);
}

#define SYS_HUGE (UINT64_C(2) << 20)

/*
 * Zeroed memory for a table, or NULL. Uses huge pages if it is large, since accesses to a table are
 * random.
 */
static inline void *sys_table(size_t bytes) {
    size_t slack = bytes >= SYS_HUGE ? SYS_HUGE : 0;
    char *memory = sys_map(bytes + slack, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (!memory || !slack) return memory;
    size_t before = -(uintptr_t)memory & (SYS_HUGE - 1);
    if (before) sys_unmap(memory, before);
    if (slack - before) sys_unmap(memory + before + bytes, slack - before);
    SYS(SYS_madvise, memory + before, bytes, MADV_HUGEPAGE);
    return memory + before;
}

#endif
