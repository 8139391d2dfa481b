/*
 * cuGetProcAddress. The driver is called first, so that it evaluates version and stream flag and
 * sets the status; then the entry that it returns is replaced by that entry's wrapper.
 */
#include <stdbool.h>

#include "lookup/resolve.h"
#include "region/regions.h"

/* The entry by the driver's rules: the newest one that the given CUDA version has. */
static int by_rule(int first, int version, uint64_t flags) {
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    int best = HOOK_NONE;
    for (int id = first; id != HOOK_NONE; id = hooks_next_of_base(id)) {
        bool twin = hooks[id].stream == STREAM_PER_THREAD;
        if (hooks[id].version > version || (twin && !per_thread)) continue;
        if (best == HOOK_NONE || hooks[id].version > hooks[best].version ||
            (hooks[id].version == hooks[best].version && twin))
            best = id;
    }
    return best;
}

/*
 * The entry with that address, under any name. A driver may also accept exported names, such as
 * "cuMemAlloc_v2"; those of releases 470 to 555 do not.
 */
static int by_address(void *found) {
    static bool all_asked;
    bool known = __atomic_load_n(&all_asked, __ATOMIC_ACQUIRE);
    for (int id = 0; id < HOOK_COUNT; id++) {
        if (hooks[id].library != LIBRARY_CUDA || !hooks[id].wrapper) continue;
        if ((known ? __atomic_load_n(&resolve_known[id], __ATOMIC_ACQUIRE) : resolve_find(id)) == found)
            return id;
    }
    __atomic_store_n(&all_asked, true, __ATOMIC_RELEASE); /* missing ones are looked up once */
    return HOOK_NONE;
}

/*
 * Whether cuGetProcAddress of this driver returns the functions that it exports, as all known ones
 * do.
 */
static bool hands_out_exports(void) {
    void *function = NULL;
    if (!resolve_find(H_cuGetProcAddress)) return true;
    REAL(cuGetProcAddress)("cuInit", &function, 2000, 0);
    return function == resolve_find(H_cuInit);
}

/*
 * Whether the table knows the entry: a CUDA newer than the table may have a newer one of that name.
 */
static bool entry_is_known(const char *name, void *found, int version, uint64_t flags) {
    void *function = NULL;
    if (version <= HOOKS_NEWEST_CUDA) return true;
    REAL(cuGetProcAddress)(name, &function, HOOKS_NEWEST_CUDA, flags);
    return function == found;
}

/*
 * The entry that was returned, by its address if that is known. Otherwise the rule decides, but
 * only if addresses of this driver say nothing or the entry is not exported. An unknown entry is
 * not replaced.
 */
static int entry_of(const char *name, void *found, int version, uint64_t flags) {
    int first = hooks_by_base(name);
    int ruled = first == HOOK_NONE ? HOOK_NONE : by_rule(first, version, flags);
    if (ruled != HOOK_NONE && resolve_find(ruled) == found) return ruled;
    int proven = by_address(found);
    if (proven != HOOK_NONE || ruled == HOOK_NONE) return proven;
    if (resolve_find(ruled) && hands_out_exports()) return HOOK_NONE;
    return entry_is_known(name, found, version, flags) ? ruled : HOOK_NONE;
}

static void replace(const char *name, void **function, int version, uint64_t flags) {
    if (!name || !function || !*function || regions_inert()) return;
    int entry = entry_of(name, *function, version, flags);
    if (entry == HOOK_NONE || *function == hooks[entry].wrapper) return;
    resolve_learn(entry, *function);
    *function = hooks[entry].wrapper;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(name, function, version, flags);
    if (result == CUDA_SUCCESS) replace(name, function, version, flags);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                    int *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(name, function, version, flags, status);
    if (result == CUDA_SUCCESS) replace(name, function, version, flags);
    return result;
}
