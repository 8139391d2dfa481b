/* Finds libc's own dlsym and friends, which cannot be asked of a dlsym that the shim replaces. */
#ifndef MIZAR_SYMBOLS_H
#define MIZAR_SYMBOLS_H

/*
 * libc's definition of `name`, whoever else defines it: others that wrap it would be asked in turn by
 * what the shim hands out. Where libc has none, the first one in an object after the shim's; or NULL.
 */
void *symbols_next(const char *name);

/* The first definition of `name` in an object loaded after the one that holds this code, or NULL. */
void *symbols_after(const void *code, const char *name);

#endif
