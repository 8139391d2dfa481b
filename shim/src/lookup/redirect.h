/*
 * Makes an object's own symbol table name the wrappers, so that whoever looks a function up in that
 * object finds the wrapper, whatever he looks up before or instead of the shim.
 */
#ifndef MIZAR_REDIRECT_H
#define MIZAR_REDIRECT_H

#include <link.h>
#include <stdbool.h>

#include "lookup/hooks.h"

/* The real functions must be known already: nobody finds them afterwards. False: nothing changed. */
bool redirect(struct link_map *object, enum hook_library library);

#endif
