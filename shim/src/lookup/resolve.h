/*
 * The real functions. A missing one is replaced by a function that returns an error when it is
 * called.
 */
#ifndef MIZAR_RESOLVE_H
#define MIZAR_RESOLVE_H

#include "lookup/hooks.h"

extern void *resolve_known[HOOK_COUNT]; /* NULL until looked up */

/* The driver's own function; NULL if this driver does not have it or is not loaded. */
void *resolve_find(int hook);

/* Like resolve_find(), but returns a function that returns an error in place of a missing one. */
void *resolve_or_error(int hook);

/* Sets the real function if it is not known, for drivers that are loaded under unusual names. */
void resolve_learn(int hook, void *function);

/* The real function, looked up at the first call, or one that returns an error. */
static inline void *resolve(int hook) {
    void *function = __atomic_load_n(&resolve_known[hook], __ATOMIC_ACQUIRE);
    return __builtin_expect(function != NULL, 1) ? function : resolve_or_error(hook);
}

/* The real function if it was looked up already, else NULL. Calls nothing. */
#define KNOWN(symbol) \
    ((__typeof__(&symbol))__atomic_load_n(&resolve_known[H_##symbol], __ATOMIC_ACQUIRE))

/* REAL(cuMemAlloc_v2)(pointer, bytes) calls the driver's function. */
#define REAL(symbol) ((__typeof__(&symbol))resolve(H_##symbol))

/*
 * libc's own functions, bypassing the shim: those of dynamic linking, and those that not every libc
 * has. A missing one is replaced by a function that returns NULL.
 */
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

/* The handle of the library (enum hook_library) by dlopen; NULL if it is not loaded. */
void *resolve_library(unsigned library);

#endif
