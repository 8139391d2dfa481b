/* Linked with the driver, loaded with RTLD_LOCAL: only from inside it is the driver to be seen. */
#include <dlfcn.h>

void *plugin_default(const char *name);
void *plugin_next(const char *name);
int cuDeviceGetCount(int *count);
int plugin_count(void);

void *plugin_default(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    __asm__ volatile("" ::: "memory"); /* no tail call: the caller must stay this library */
    return found;
}

void *plugin_next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    __asm__ volatile("" ::: "memory");
    return found;
}

int plugin_count(void) {
    int count;
    return cuDeviceGetCount(&count);
}
