/*
 * Two ways to open a library lead past a preloaded one: RTLD_DEEPBIND, by which it finds what it
 * brings along first, and dlmopen, by which it finds nothing but what it brings along.
 */
#ifndef MIZAR_LOADING_H
#define MIZAR_LOADING_H

/* Before a library is opened with RTLD_DEEPBIND: it will find the wrappers in the driver itself. */
void loading_deep(void);

/*
 * Before dlmopen: the namespace to open the library in. In place of LM_ID_NEWLM that is a new one in
 * which the shim is the first object, as it is in the program's own, so that it is in the global
 * scope of everything that comes after it. Where there is nothing to limit, it is `space`.
 */
long loading_space(long space, int mode);

#endif
