/*
 * AddressSanitizer's runtime (of gcc, as a library) ends a program at once where any library comes before
 * it, as all of /etc/ld.so.preload does; what it replaces of libc it replaces all the same. A program that
 * has a function of this name itself says so in ASAN_OPTIONS=verify_asan_link_order=0.
 */
#include "lookup/hooks.h"

EXPORT const char *__asan_default_options(void);

EXPORT const char *__asan_default_options(void) {
    return "verify_asan_link_order=0";
}
