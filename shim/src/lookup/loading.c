#include "lookup/loading.h"

#include <dlfcn.h>
#include <link.h>
#include <time.h>

#include "base/message.h"
#include "lookup/redirect.h"
#include "lookup/resolve.h"
#include "region/process_state.h"
#include "region/regions.h"

#define NO_SPACE (-3) /* a namespace that dlmopen refuses */

static struct link_map *object_of(const void *code, Dl_info *info) {
    void *object = NULL;
    return resolve_libc()->dladdr1(code, info, &object, RTLD_DL_LINKMAP) ? object : NULL;
}

/* Redirects the objects in which this version of libc has dlsym and dlopen. */
static bool redirect_libc(void) {
    Dl_info info;
    struct link_map *open = object_of((void *)resolve_libc()->dlopen, &info);
    struct link_map *look = object_of((void *)resolve_libc()->dlsym, &info);
    return redirect(look, LIBRARY_LIBC) && (open == look || redirect(open, LIBRARY_LIBC));
}

static void find_all(unsigned library) {
    for (int hook = 0; hook < HOOK_COUNT; hook++)
        if (hooks[hook].library == library) resolve_find(hook);
}

static bool redirect_driver(enum hook_library library) {
    struct link_map *object = resolve_library(library);
    if (!object) return true;
    find_all(library);
    return redirect(object, library);
}

/*
 * Loads the driver first: a library may be linked with it, and would be bound to it before the shim
 * could act. If there is no driver, there is nothing to limit.
 */
static bool redirect_all(void) {
    find_all(LIBRARY_LIBC);
    resolve_libc()->dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    return redirect_libc() && redirect_driver(LIBRARY_CUDA) && redirect_driver(LIBRARY_NVML);
}

void loading_deep(void) {
    static uint32_t lock, done;
    static int told;
    if (__atomic_load_n(&done, __ATOMIC_ACQUIRE) || regions_inert()) return;
    lock_patiently(&lock); /* in a forked child, its holder may not exist */
    if (!done && !redirect_all())
        message_once(&told, "a library opened with RTLD_DEEPBIND may use CUDA without limits");
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    lock_release(&lock);
}

/* Makes the shim of that namespace prepare for RTLD_DEEPBIND, by such a call of its dlopen. */
static void prepare_deep(void *shim, const char *path) {
    void *(*open)(const char *, int) = (void *(*)(const char *, int))resolve_libc()->dlsym(
        shim, "dlopen");
    open(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_DEEPBIND);
}

long loading_space(long space, int mode) {
    static int told;
    Lmid_t made = NO_SPACE;
    Dl_info info;
    bool deep = mode & RTLD_DEEPBIND;
    if (space == LM_ID_BASE && deep) loading_deep();
    if (space == LM_ID_BASE || (space != LM_ID_NEWLM && !deep)) return space;
    if (regions_inert() || !object_of((void *)&loading_space, &info)) return space;
    void *shim = resolve_libc()->dlmopen(space, info.dli_fname, RTLD_NOW | RTLD_LOCAL);
    if (shim && deep) prepare_deep(shim, info.dli_fname);
    if (shim && resolve_libc()->dlinfo(shim, RTLD_DI_LMID, &made) == 0) return made;
    message_once(&told, "dlmopen is refused: %s cannot be loaded there", info.dli_fname);
    return NO_SPACE;
}
