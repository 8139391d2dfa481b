/*
 * dlsym and dlvsym: names without a hook go to libc untouched (the assembly stubs jump there, so
 * that libc sees the program's own return address and RTLD_NEXT means what it meant). For a name
 * with a hook the answer is what libc would say in a process without the shim; if that is the
 * driver's function, its wrapper.
 */
#include "dlsym.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "regions.h"
#include "resolve.h"

void *mizar_real_dlsym, *mizar_real_dlvsym;

static bool prefixed(const char *name) {
    return (name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v') ||
           (name[0] == 'd' && name[1] == 'l');
}

static void find_libc(void) {
    const struct resolve_libc *libc = resolve_libc();
    __atomic_store_n(&mizar_real_dlvsym, (void *)libc->dlvsym, __ATOMIC_RELAXED);
    __atomic_store_n(&mizar_real_dlsym, (void *)libc->dlsym, __ATOMIC_RELEASE);
}

int mizar_hook_of(const char *name) {
    if (!__atomic_load_n(&mizar_real_dlsym, __ATOMIC_ACQUIRE)) find_libc();
    return name && prefixed(name) ? hooks_by_symbol(name) : HOOK_NONE;
}

struct question {
    const char *name, *version;
    void *caller;
    int hook;
};

static void *ask(const struct question *question, void *handle) {
    const struct resolve_libc *libc = resolve_libc();
    return question->version ? libc->dlvsym(handle, question->name, question->version)
                             : libc->dlsym(handle, question->name);
}

/* The object that holds the caller's code: glibc's dlopen handles are these. */
static void *object_of(void *caller) {
    Dl_info info;
    void *object = NULL;
    return resolve_libc()->dladdr1(caller, &info, &object, RTLD_DL_LINKMAP) ? object : NULL;
}

/*
 * Past the shim: in the objects of the global scope after it, then in what the caller itself
 * loaded. That is where RTLD_DEFAULT and RTLD_NEXT of any caller find a driver, if there is one.
 */
static void *ask_past_shim(const struct question *question) {
    void *found = ask(question, RTLD_NEXT);
    void *object = found ? NULL : object_of(question->caller);
    return object ? ask(question, object) : found;
}

static bool from_driver(int hook, void *function) {
    static const char *const parts[LIBRARIES] = {
        [LIBRARY_CUDA] = "libcuda.so", [LIBRARY_NVML] = "libnvidia-ml.so"};
    Dl_info info;
    void *unused;
    return resolve_libc()->dladdr1(function, &info, &unused, RTLD_DL_LINKMAP) && info.dli_fname &&
           strstr(info.dli_fname, parts[hooks[hook].library]);
}

/*
 * Only the driver's own function is replaced: a program may have one of that name itself. libc's
 * dlsym always is, without a look at any file: programs without CUDA ask for it too.
 */
static void *wrapper_for(int hook, void *found) {
    if (hooks[hook].library == LIBRARY_LIBC) return hooks[hook].wrapper;
    if (regions_inert()) return found;
    if (!resolve_find(hook) && from_driver(hook, found)) resolve_learn(hook, found);
    return found == resolve_find(hook) ? hooks[hook].wrapper : found;
}

static void *answer(const struct question *question, void *handle) {
    void *wrapper = hooks[question->hook].wrapper;
    bool scope = handle == RTLD_DEFAULT || handle == RTLD_NEXT;
    void *found = scope ? ask_past_shim(question) : ask(question, handle);
    if (found == wrapper) found = ask_past_shim(question); /* the handle was the global scope */
    if (found == wrapper) return ask(question, RTLD_NEXT); /* nothing there; leaves dlerror right */
    if (!found) return NULL;
    return wrapper_for(question->hook, found);
}

void *mizar_dlsym(void *handle, const char *name, void *caller, int hook) {
    struct question question = {.name = name, .caller = caller, .hook = hook};
    return answer(&question, handle);
}

void *mizar_dlvsym(void *handle, const char *name, const char *version, void *caller, int hook) {
    struct question question = {name, version, caller, hook};
    return answer(&question, handle);
}
