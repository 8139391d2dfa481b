#include "lookup/dlopen.h"

#include <dlfcn.h>
#include <link.h>
#include <time.h>

#include "base/message.h"
#include "lookup/elf_patch.h"
#include "lookup/resolve.h"
#include "lookup/symbols.h"
#include "region/process_slots.h"
#include "region/process_state.h"
#include "region/regions.h"

#define NO_SPACE (-3) /* a namespace that dlmopen refuses */

static struct link_map *object_of(const void *code, Dl_info *info) {
    void *object = NULL;
    return resolve_libc()->dladdr1(code, info, &object, RTLD_DL_LINKMAP) ? object : NULL;
}

/* Patches the objects in which this version of libc has dlsym and dlopen. */
static bool patch_libc(void) {
    Dl_info info;
    struct link_map *open = object_of((void *)resolve_libc()->dlopen, &info);
    struct link_map *look = object_of((void *)resolve_libc()->dlsym, &info);
    return elf_patch_symbols(look, LIBRARY_LIBC) &&
           (open == look || elf_patch_symbols(open, LIBRARY_LIBC));
}

static void find_all(unsigned library) {
    for (int hook = 0; hook < HOOK_COUNT; hook++)
        if (hooks[hook].library == library) resolve_find(hook);
}

static bool patch_driver(enum hook_library library) {
    static bool done[LIBRARIES];
    struct link_map *object = resolve_library(library);
    if (!object || done[library]) return true;
    find_all(library);
    return done[library] = elf_patch_symbols(object, library);
}

bool dlopen_driver_first(void) {
    return symbols_precede("libcuda.so");
}

/* Whether the object is the shim, whose own references are to the driver. */
static bool is_shim(const struct link_map *object) {
    return object->l_ld == _DYNAMIC;
}

/* The references of all objects that were loaded before the program started. */
static bool patch_references(struct link_map *driver) {
    bool done = true;
    struct link_map *each = driver;
    while (each->l_prev) each = each->l_prev;
    for (; each; each = each->l_next)
        if (!is_shim(each) && each != driver) done = elf_patch_references(each, LIBRARY_CUDA) && done;
    return done;
}

/*
 * Some images name the driver in LD_PRELOAD for programs that would not find it. Then all objects that are
 * linked with the driver are bound to it instead of to the wrappers.
 */
__attribute__((constructor)) static void patch_preloaded(void) {
    static int told;
    if (!dlopen_driver_first() || regions_inert()) return;
    struct link_map *driver = resolve_library(LIBRARY_CUDA);
    if (driver && patch_driver(LIBRARY_CUDA) && patch_references(driver)) return;
    message_once(&told, "the driver is in LD_PRELOAD: programs may use CUDA without limits");
    process_slots_tell_past();
}

/*
 * Loads the driver first: a library may be linked with it, and would be bound to it before the shim
 * could act. If there is no driver, there is nothing to limit.
 */
static bool patch_all(void) {
    find_all(LIBRARY_LIBC);
    resolve_libc()->dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    return patch_libc() && patch_driver(LIBRARY_CUDA) && patch_driver(LIBRARY_NVML);
}

void dlopen_before_deepbind(void) {
    static uint32_t lock, done;
    static int told;
    if (__atomic_load_n(&done, __ATOMIC_ACQUIRE) || regions_inert()) return;
    lock_patiently(&lock); /* in a forked child, its holder may not exist; process_state.h: order */
    if (!done && !patch_all())
        message_once(&told, "a library opened with RTLD_DEEPBIND may use CUDA without limits");
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    lock_release(&lock);
}

/* Calls dlopen of that namespace's shim with RTLD_DEEPBIND, so that the shim prepares for it. */
static void prepare_deep(void *shim, const char *path) {
    void *(*open)(const char *, int) = (void *(*)(const char *, int))resolve_libc()->dlsym(
        shim, "dlopen");
    open(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_DEEPBIND);
}

long dlopen_space(long space, int mode) {
    static int told;
    Lmid_t made = NO_SPACE;
    Dl_info info;
    bool deep = mode & RTLD_DEEPBIND;
    if (space == LM_ID_BASE && deep) dlopen_before_deepbind();
    if (space == LM_ID_BASE || (space != LM_ID_NEWLM && !deep)) return space;
    if (regions_inert() || !object_of((void *)&dlopen_space, &info)) return space;
    void *shim = resolve_libc()->dlmopen(space, info.dli_fname, RTLD_NOW | RTLD_LOCAL);
    if (shim && deep) prepare_deep(shim, info.dli_fname);
    if (shim && resolve_libc()->dlinfo(shim, RTLD_DI_LMID, &made) == 0) return made;
    message_once(&told, "dlmopen is refused: %s cannot be loaded there", info.dli_fname);
    return NO_SPACE;
}
