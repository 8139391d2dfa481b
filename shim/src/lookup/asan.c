/*
 * The runtime library of gcc's AddressSanitizer ends a program if any library is loaded before it,
 * as those of /etc/ld.so.preload are, although it replaces libc's functions nevertheless. This
 * option makes it accept that. A program that defines a function of this name itself needs
 * ASAN_OPTIONS=verify_asan_link_order=0 in its environment.
 */
#include "lookup/hooks.h"

EXPORT const char *__asan_default_options(void);

EXPORT const char *__asan_default_options(void) {
    return "verify_asan_link_order=0";
}
