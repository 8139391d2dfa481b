/*
 * Makes an object's own symbol table name the wrappers, so that a lookup in that object finds the
 * wrapper, whatever is searched before or instead of the shim.
 *
 * Needed for RTLD_DEEPBIND, with which Julia opens every library by default: a libcudart, cuBLAS or
 * plugin opened with it finds libc's own dlsym and the driver's own functions before any preloaded
 * ones. Without this, such a program's use of CUDA would have no limits although it does
 * not try to evade them, so it cannot be left to the audit. The same holds for programs with the driver
 * in LD_PRELOAD. Other programs do not pay for it. docs/adr/0010 has the alternatives.
 */
#ifndef MIZAR_ELF_PATCH_H
#define MIZAR_ELF_PATCH_H

#include <link.h>
#include <stdbool.h>

#include "lookup/hooks.h"

/*
 * Patches the symbol table of the object. Its real functions must have been resolved before, since a
 * lookup does not find them afterwards. Returns false, without a change, if that is not possible.
 */
bool elf_patch_symbols(struct link_map *object, enum hook_library library);

/*
 * Makes references of the object that are bound to the driver's functions refer to the wrappers.
 * Returns false if that is not possible.
 */
bool elf_patch_references(struct link_map *object, enum hook_library library);

#endif
