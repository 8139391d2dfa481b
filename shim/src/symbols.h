/* Finds libc's own dlsym and friends, which cannot be asked of a dlsym that the shim replaces. */
#ifndef MIZAR_SYMBOLS_H
#define MIZAR_SYMBOLS_H

/* The first definition of `name` in an object loaded after the shim's own, or NULL. */
void *symbols_next(const char *name);

#endif
