/*
 * The string functions that symbol lookups need. Lookups may come before strcmp can be called, if a
 * sanitizer has replaced it.
 */
#ifndef MIZAR_TEXT_H
#define MIZAR_TEXT_H

#include <stdbool.h>

static inline bool text_begins(const char *text, const char *with) {
    while (*with && *text == *with) text++, with++;
    return !*with;
}

static inline bool text_is(const char *text, const char *other) {
    while (*other && *text == *other) text++, other++;
    return *text == *other;
}

static inline bool text_contains(const char *text, const char *part) {
    for (; *text; text++)
        if (text_begins(text, part)) return true;
    return false;
}

#endif
