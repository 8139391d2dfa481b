/* The second of two libraries that define who(). */
#include <dlfcn.h>

const char *who(void);
const char *ask_second(void);

const char *who(void) {
    return "second";
}

const char *ask_second(void) {
    const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "who");
    return next ? next() : "nobody";
}
