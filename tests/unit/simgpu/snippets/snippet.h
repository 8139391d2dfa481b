/* One test, one function: SNIPPET(name) { ... }. The program runs the one that is named. */
#ifndef SNIPPET_H
#define SNIPPET_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_api.h"

struct snippet {
    const char *name;
    void (*run)(void);
    struct snippet *next;
};
extern struct snippet *snippets;
extern char **arguments; /* after the snippet's name */

#define SNIPPET(title)                                                    \
    static void title(void);                                              \
    __attribute__((constructor)) static void register_##title(void) {     \
        static struct snippet self = {#title, title, NULL};               \
        self.next = snippets;                                             \
        snippets = &self;                                                 \
    }                                                                     \
    static void title(void)

#define FAIL(...)                                                         \
    do {                                                                  \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                   \
        fprintf(stderr, __VA_ARGS__);                                     \
        fputc('\n', stderr);                                              \
        exit(1);                                                          \
    } while (0)

#define EXPECT(condition)                                                 \
    do {                                                                  \
        if (!(condition)) FAIL("check failed: %s", #condition);           \
    } while (0)

/* Equal, as signed 64-bit numbers. */
#define EQUAL(value, wanted)                                              \
    do {                                                                  \
        long long value_ = (long long)(value), wanted_ = (long long)(wanted); \
        if (value_ != wanted_) FAIL("%s is %lld, not %lld", #value, value_, wanted_); \
    } while (0)

#define GIVES(wanted, call) EQUAL(call, wanted)
#define OK(call) GIVES(CUDA_SUCCESS, call)

enum { MIB = 1 << 20, PAGE = 2 << 20, CARD = 0 };
#define GIB ((size_t)1 << 30)

/* cuInit and the first card's primary context. */
CUcontext start(void);
/* Bytes used on the current card. */
size_t used(void);
/* A kernel of that name. */
CUfunction kernel(const char *name);
/* Launches one wave that fills the card. */
void launch(CUfunction function, CUstream stream);
/* Launches `blocks` blocks of 1024 threads. */
void launch_blocks(CUfunction function, unsigned blocks, CUstream stream);
/* Microseconds between two events, rounded. */
long elapsed_us(CUevent from, CUevent to);
CUevent event(void);
CUstream stream(void); /* that minds no other */

#endif
