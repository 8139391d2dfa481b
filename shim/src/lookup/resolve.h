/* The real functions. A missing one is no error until it is called: then it answers so itself. */
#ifndef MIZAR_RESOLVE_H
#define MIZAR_RESOLVE_H

#include "lookup/hooks.h"

extern void *resolve_known[HOOK_COUNT]; /* NULL until asked for */

/* The driver's own function, or NULL when this driver does not have it (or is not loaded). */
void *resolve_find(int hook);

/* The same, but in place of a missing function one that returns an error. */
void *resolve_or_error(int hook);

/* Takes `function` for the real one if there is no other: drivers loaded under unusual names. */
void resolve_learn(int hook, void *function);

static inline void *resolve(int hook) {
    void *function = __atomic_load_n(&resolve_known[hook], __ATOMIC_ACQUIRE);
    return __builtin_expect(function != NULL, 1) ? function : resolve_or_error(hook);
}

/* The same where it is known already, else NULL: no call at all. */
#define KNOWN(symbol) \
    ((__typeof__(&symbol))__atomic_load_n(&resolve_known[H_##symbol], __ATOMIC_ACQUIRE))

/* REAL(cuMemAlloc_v2)(pointer, bytes): the call without the shim. */
#define REAL(symbol) ((__typeof__(&symbol))resolve(H_##symbol))

/* libc's own functions, found past the shim: of dynamic linking, and what not every libc has. */
struct resolve_libc {
    void *(*dlsym)(void *handle, const char *name);
    void *(*dlvsym)(void *handle, const char *name, const char *version);
    void *(*dlopen)(const char *file, int mode);
    int (*dlclose)(void *handle);
    void *(*dlmopen)(long space, const char *file, int mode);
    int (*dlinfo)(void *handle, int request, void *info);
    int (*dladdr1)(const void *address, void *info, void **extra, int flags);
    int (*at_thread_exit)(void (*function)(void *), void *data, void *object);
};

const struct resolve_libc *resolve_libc(void);

/* The driver's object, if it is loaded: what dlopen returns. */
void *resolve_library(unsigned library);

#endif
