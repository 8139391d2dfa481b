/* Finds libc's own dlsym and similar functions, without the dlsym that the shim replaces. */
#ifndef MIZAR_SYMBOLS_H
#define MIZAR_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * libc's definition of `name`, even if other objects define it too: another wrapper would call the
 * shim's in turn. If libc has none, the first one in an object after the shim; else NULL.
 */
void *symbols_next(const char *name);

/*
 * The first definition of `name` in an object loaded after the one that contains this code, or
 * NULL.
 */
void *symbols_after(const void *code, const char *name);

/*
 * Whether ld.so has added the object's base to the pointers in its dynamic section, as it does except
 * where the section is read-only.
 */
bool symbols_relocated(uintptr_t base, const ElfW(Dyn) * entry);

/*
 * Whether an object whose file's name begins so was loaded before the shim, as by LD_PRELOAD. False in
 * another namespace, whose first object is the shim.
 */
bool symbols_precede(const char *name);

#endif
