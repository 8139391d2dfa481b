/* CHECK(condition): says what failed and ends the program with 1. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

/* The version of the first libc of this architecture. */
#ifdef __x86_64__
#define OLDEST_LIBC "GLIBC_2.2.5"
#else
#define OLDEST_LIBC "GLIBC_2.17"
#endif

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

#define CHECK_IS(value, expected)                                                          \
    do {                                                                                   \
        unsigned long long is_ = (unsigned long long)(value), be_ = (unsigned long long)(expected); \
        if (is_ != be_) {                                                                  \
            fprintf(stderr, "%s:%d: %s is %llu, expected %llu\n", __FILE__, __LINE__, #value, is_, be_); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#endif
