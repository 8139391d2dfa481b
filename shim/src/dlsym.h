/* What dlsym_*.S calls. */
#ifndef MIZAR_DLSYM_H
#define MIZAR_DLSYM_H

#include <stddef.h>

/* dlsym and dlvsym themselves are written in assembly: see there. */
void *dlsym(void *handle, const char *name);
void *dlvsym(void *handle, const char *name, const char *version);

/* The hook of that name, or a negative number. Makes the two pointers below valid. */
int mizar_hook_of(const char *name);

extern void *mizar_real_dlsym, *mizar_real_dlvsym;

/* The answers for a name that has a hook; `caller` is where dlsym was called. */
void *mizar_dlsym(void *handle, const char *name, void *caller, int hook);
void *mizar_dlvsym(void *handle, const char *name, const char *version, void *caller, int hook);

#endif
