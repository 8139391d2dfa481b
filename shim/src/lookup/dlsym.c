/*
 * dlsym and dlvsym. Names without a hook are passed to libc unchanged: the assembly stubs jump
 * there, so that libc sees the program's return address and resolves RTLD_NEXT for it. For a name
 * with a hook, the result is what libc would return in a process without the shim, or if that is
 * the driver's function, the wrapper.
 */
#include "lookup/dlsym.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

#include "base/message.h"
#include "lookup/dlopen.h"
#include "lookup/resolve.h"
#include "lookup/symbols.h"
#include "region/process_slots.h"
#include "region/regions.h"

void *mizar_real_dlsym, *mizar_real_dlvsym, *mizar_real_dlopen, *mizar_real_dlmopen;

static bool prefixed(const char *name) {
    return (name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v') ||
           (name[0] == 'd' && name[1] == 'l');
}

static void find_libc(void) {
    const struct resolve_libc *libc = resolve_libc();
    if (__atomic_load_n(&mizar_real_dlsym, __ATOMIC_ACQUIRE)) return;
    __atomic_store_n(&mizar_real_dlopen, (void *)libc->dlopen, __ATOMIC_RELAXED);
    __atomic_store_n(&mizar_real_dlmopen, (void *)libc->dlmopen, __ATOMIC_RELAXED);
    __atomic_store_n(&mizar_real_dlvsym, (void *)libc->dlvsym, __ATOMIC_RELAXED);
    __atomic_store_n(&mizar_real_dlsym, (void *)libc->dlsym, __ATOMIC_RELEASE);
}

int mizar_hook_of(const char *name) {
    find_libc();
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

/* The loaded object that contains this code. glibc's dlopen() returns such objects as handles. */
static struct link_map *object_of(const void *code) {
    Dl_info info;
    void *object = NULL;
    return resolve_libc()->dladdr1(code, &info, &object, RTLD_DL_LINKMAP) ? object : NULL;
}

static struct link_map *first_beside(struct link_map *object) {
    while (object && object->l_prev) object = object->l_prev;
    return object;
}

/*
 * Whether the handle is the program's, the first object. It stands for the global scope, which
 * contains the shim.
 */
static bool is_program(const void *handle) {
    static struct link_map *program;
    struct link_map *first = __atomic_load_n(&program, __ATOMIC_RELAXED);
    if (!first) first = first_beside(object_of((void *)&is_program));
    __atomic_store_n(&program, first, __ATOMIC_RELAXED);
    return handle == first;
}

/*
 * Looks the name up in an object and its dependencies. Works only for an object that dlopen() finds
 * by its path; otherwise looks after the shim, where nothing is found, so that dlerror() is set.
 */
static void *ask_object(const struct question *question, const struct link_map *object) {
    void *handle = resolve_libc()->dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void *found = handle ? ask(question, handle) : NULL;
    if (handle) resolve_libc()->dlclose(handle);
    return found ? found : ask(question, RTLD_NEXT); /* finds nothing, and sets dlerror */
}

/*
 * The result for a library that looks for the next definition after its own, which must not be its
 * own again. For libc's functions it gets the shim's in any case.
 */
static void *after_caller(const struct question *question, void *found) {
    bool own = found && hooks[question->hook].library != LIBRARY_LIBC &&
               object_of(found) == object_of(question->caller);
    return own ? symbols_after(question->caller, question->name) : found;
}

/*
 * Looks the name up in the objects of the global scope after the shim, and then in the caller's
 * object and its dependencies. There RTLD_DEFAULT and RTLD_NEXT of any caller find a driver, if
 * there is one.
 */
static void *ask_past_shim(const struct question *question) {
    void *found = ask(question, RTLD_NEXT);
    const struct link_map *object = found ? NULL : object_of(question->caller);
    if (!found && hooks[question->hook].library == LIBRARY_CUDA && dlopen_driver_first())
        return resolve_find(question->hook);
    return object && !is_program(object) ? ask_object(question, object) : found;
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
 * The wrapper for a driver in another namespace, whose first object is a shim of its own
 * (dlopen.c).
 */
static void *second_wrapper(int hook, void *found) {
    struct link_map *first = first_beside(object_of(found));
    void *wrapper = first && !is_program(first) && from_driver(hook, found)
                        ? resolve_libc()->dlsym(first, hooks[hook].symbol)
                        : NULL;
    return wrapper ? wrapper : found;
}

/*
 * Reports a second driver, another file of that name, whose calls are not limited, to the node
 * agent and on stderr.
 */
static void tell_past(void *function) {
    static int told;
    Dl_info info;
    process_slots_tell_past();
    if (resolve_libc()->dladdr1(function, &info, NULL, 0))
        message_once(&told, "%s is a second driver: calls of its functions have no limits", info.dli_fname);
}

/*
 * The wrapper for a function that was found. Only the driver's own function is replaced, since a
 * program may have one of the same name. libc's functions are always replaced, without reading any
 * file, since programs without CUDA look them up too.
 */
static void *wrapper_for(int hook, void *found) {
    void *wrapper = hooks[hook].wrapper;
    if (found == wrapper || hooks[hook].library == LIBRARY_LIBC) return wrapper;
    if (regions_inert()) return found;
    void *second = second_wrapper(hook, found);
    if (second != found) return second;
    if (!resolve_find(hook) && from_driver(hook, found)) resolve_learn(hook, found);
    if (found == resolve_find(hook)) return wrapper;
    if (hooks[hook].library == LIBRARY_CUDA && from_driver(hook, found)) tell_past(found);
    return found;
}

/* Looks the name up in objects before the shim: the program, or another preloaded library. */
static void *ask_before_shim(const struct question *question) {
    void *found = ask(question, RTLD_DEFAULT);
    return found == hooks[question->hook].wrapper ? NULL : found;
}

static void *ask_handle(const struct question *question, void *handle) {
    if (handle == RTLD_NEXT) return after_caller(question, ask_past_shim(question));
    return handle == RTLD_DEFAULT || is_program(handle) ? ask_past_shim(question)
                                                        : ask(question, handle);
}

static void *answer(const struct question *question, void *handle) {
    bool global = handle == RTLD_DEFAULT || is_program(handle);
    void *found = global ? ask_before_shim(question) : NULL;
    if (found && found != resolve_find(question->hook)) return found;
    found = ask_handle(question, handle);
    return found ? wrapper_for(question->hook, found) : NULL;
}

void *mizar_dlsym(void *handle, const char *name, void *caller, int hook) {
    struct question question = {.name = name, .caller = caller, .hook = hook};
    return answer(&question, handle);
}

void *mizar_dlvsym(void *handle, const char *name, const char *version, void *caller, int hook) {
    struct question question = {name, version, caller, hook};
    return answer(&question, handle);
}

const char *mizar_before_dlopen(const char *file, int mode) {
    find_libc();
    if (mode & RTLD_DEEPBIND) dlopen_before_deepbind();
    return file;
}

long mizar_before_dlmopen(long space, const char *file, int mode) {
    (void)file;
    find_libc();
    return dlopen_space(space, mode);
}
