/*
 * The functions that dlsym_*.S calls: for dlsym and dlvsym, and before libc's dlopen and dlmopen.
 */
#ifndef MIZAR_DLSYM_H
#define MIZAR_DLSYM_H

#include <stddef.h>

/* Defined in assembly. */
void *dlsym(void *handle, const char *name);
void *dlvsym(void *handle, const char *name, const char *version);

void *dlopen(const char *file, int mode);
void *dlmopen(long space, const char *file, int mode);

/* The hook of that name, or a negative number. Initializes the pointers below. */
int mizar_hook_of(const char *name);

extern void *mizar_real_dlsym, *mizar_real_dlvsym, *mizar_real_dlopen, *mizar_real_dlmopen;

/* The results for a name that has a hook. `caller`: the return address of the call. */
void *mizar_dlsym(void *handle, const char *name, void *caller, int hook);
void *mizar_dlvsym(void *handle, const char *name, const char *version, void *caller, int hook);

/*
 * To be called before libc opens a library. Return the first argument for libc. Initialize the
 * pointers above.
 */
const char *mizar_before_dlopen(const char *file, int mode);
long mizar_before_dlmopen(long space, const char *file, int mode);

#endif
