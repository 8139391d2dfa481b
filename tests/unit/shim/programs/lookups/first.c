/* The first of two libraries that define who(); each can ask for the next one. */
#include <dlfcn.h>

const char *who(void);
const char *ask_first(void);

const char *who(void) {
    return "first";
}

const char *ask_first(void) {
    const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "who");
    return next ? next() : "nobody";
}

/* Looked up by a library that the program was linked with. */
void *first_default(const char *name);
void *first_next(const char *name);

void *first_default(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}

void *first_next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}
