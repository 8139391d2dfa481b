/*
 * Makes an object's own symbol table name the wrappers, so that a lookup in that object finds the wrapper,
 * whatever is searched before or instead of the shim.
 *
 * It is there for RTLD_DEEPBIND, with which Julia opens every library by default: libcudart, cuBLAS or a
 * plugin that was opened so finds libc's own dlsym, and the driver's own functions, before any that was
 * preloaded. Without this, everything such a program does with CUDA has no limits, and nobody means to get
 * around them: so it cannot be left to the audit. A hundred lines, and only programs that use the flag pay for them;
 * what else was thought of is in docs/adr/0010.
 */
#ifndef MIZAR_REDIRECT_H
#define MIZAR_REDIRECT_H

#include <link.h>
#include <stdbool.h>

#include "lookup/hooks.h"

/* The real functions must be known already: nobody finds them afterwards. False: nothing changed. */
bool redirect(struct link_map *object, enum hook_library library);

#endif
