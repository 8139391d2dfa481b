/* What dlsym_*.S calls: dlsym and dlvsym themselves, and what is done ahead of libc's dlopen. */
#ifndef MIZAR_DLSYM_H
#define MIZAR_DLSYM_H

#include <stddef.h>

/* These are written in assembly: see there. */
void *dlsym(void *handle, const char *name);
void *dlvsym(void *handle, const char *name, const char *version);

void *dlopen(const char *file, int mode);
void *dlmopen(long space, const char *file, int mode);

/* The hook of that name, or a negative number. Makes the pointers below valid. */
int mizar_hook_of(const char *name);

extern void *mizar_real_dlsym, *mizar_real_dlvsym, *mizar_real_dlopen, *mizar_real_dlmopen;

/* The answers for a name that has a hook; `caller` is where dlsym was called. */
void *mizar_dlsym(void *handle, const char *name, void *caller, int hook);
void *mizar_dlvsym(void *handle, const char *name, const char *version, void *caller, int hook);

/*
 * What must be done before libc opens something; the first argument as libc should get it. They make
 * the pointers above valid.
 */
const char *mizar_before_dlopen(const char *file, int mode);
long mizar_before_dlmopen(long space, const char *file, int mode);

#endif
