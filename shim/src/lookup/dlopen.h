/*
 * Handles the two ways to open a library that bypass a preloaded one: with RTLD_DEEPBIND the
 * library's own dependencies come first, and by dlmopen it finds nothing else.
 */
#ifndef MIZAR_DLOPEN_H
#define MIZAR_DLOPEN_H

#include <stdbool.h>

/*
 * To be called before a library is opened with RTLD_DEEPBIND: makes lookups in the driver itself
 * find the wrappers.
 */
void dlopen_before_deepbind(void);

/*
 * To be called before dlmopen. Returns the namespace in which to open the library: in place of
 * LM_ID_NEWLM a new one whose first object is the shim, so that it is in the global scope of all
 * that is loaded later; an invalid one if the shim cannot be loaded there; and otherwise `space`.
 */
long dlopen_space(long space, int mode);

/*
 * Whether the driver was loaded before the shim, as by LD_PRELOAD. The wrappers were put in its place when the
 * library was loaded, but no lookup after the shim finds it.
 */
bool dlopen_driver_first(void);

#endif
