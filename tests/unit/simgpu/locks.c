/*
 * To be preloaded: says on standard output, when the program ends, how often it has waited for a
 * lock of the machine's file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

static unsigned long waits;

/* simgpu passes a pointer with every command. */
int fcntl64(int fd, int command, ...) {
    int (*libc)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64");
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    waits += command == F_OFD_SETLKW;
    return libc(fd, command, argument);
}

int fcntl(int fd, int command, ...) __attribute__((alias("fcntl64")));

__attribute__((destructor)) static void say(void) {
    printf("%lu\n", waits);
}
