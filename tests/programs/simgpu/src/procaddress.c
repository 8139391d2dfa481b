/* cuGetProcAddress: finds the entry point for a name, a CUDA version and a default-stream
 * flavour. */
#include <string.h>

#include "driver.h"
#include "entries.h"

static int first_of(const char *base) {
    int low = 0, high = entry_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(entries[middle].base, base) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool of_base(int i, const char *base) {
    return i < entry_count && strcmp(entries[i].base, base) == 0;
}

static bool has_twin(const char *base) {
    int i = first_of(base);
    while (of_base(i, base) && !entries[i].per_thread) i++;
    return of_base(i, base);
}

/* The newest entry that is no newer than `version`. With `per_thread`, only per-thread twins count if
 * the name has any. */
static const struct entry *best(const char *base, int version, bool per_thread, bool *known) {
    const struct entry *chosen = NULL;
    bool twin = per_thread && has_twin(base);
    *known = of_base(first_of(base), base);
    for (int i = first_of(base); of_base(i, base); i++)
        if (entries[i].since <= version && entries[i].per_thread == twin) chosen = &entries[i];
    return chosen;
}

static int driver_version(void) {
    return driver_ready() ? 13000 : (int)driver.sim.state->cuda_version;
}

API CUresult cuGetProcAddress_v2(const char *name, void **entry, int version, uint64_t flags,
                                 int *status) {
    bool known;
    int ignored;
    if (!name || !entry || flags > 2) return CUDA_ERROR_INVALID_VALUE;
    if (!status) status = &ignored;
    int limit = version < driver_version() ? version : driver_version();
    bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct entry *found = best(name, limit, per_thread, &known);
    *entry = NULL;
    if (found) memcpy(entry, &found->address, sizeof *entry);
    *status = found   ? CU_GET_PROC_ADDRESS_SUCCESS
              : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS; /* since CUDA 12, the status reports a missing entry, not the result */
}

API CUresult cuGetProcAddress(const char *name, void **entry, int version, uint64_t flags) {
    int status;
    TRY(cuGetProcAddress_v2(name, entry, version, flags, &status));
    return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
