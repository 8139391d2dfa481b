/* cuGetExportTable: tables of functions that the driver publishes nowhere, and without which NVIDIA's
 * libcudart does not start.
 *
 * Their IDs, their names and what is known of their entries are facts that the ZLUDA project found out
 * (github.com/vosen/ZLUDA, dark_api/src/lib.rs), where nothing else is said. Which of them NVIDIA's
 * libraries ask for and call was seen here: libcudart 11.8, 12.4, 12.9, 13.0 and 13.5, linked and static,
 * and the cuBLAS 13 that comes with PyTorch 2.15. A table begins with its size in bytes, but for that of
 * the storage. Entries that were not seen to be called are not simulated, nor are the tables of
 * profilers. One that all since 12.9 ask for first, and do without, is f8cff951-2146-8b4e-b9e2-fb469e7c0dd9. */
#include <stdio.h>
#include <string.h>

#include "handshake.h"
#include "missing.h"
#include "module.h"
#include "storage.h"

typedef const void *entry;
#define SIZE(entries) ((entry)((entries) * sizeof(entry)))
#define NOT_SIMULATED(table)                                                                \
    static CUresult no_##table(void) {                                                      \
        return missing("an entry of the driver's table " #table, CUDA_ERROR_NOT_SUPPORTED); \
    }

/* ---- CUDART_INTERFACE: operations of libcudart that have no public function -------------------- */

NOT_SIMULATED(CUDART_INTERFACE)

/* Returns the handle even if the context is not open: libcudart asks for the handle of each card
 * when it starts, which must not take memory there. */
static CUresult primary_context(CUcontext *context, CUdevice device) {
    TRY(driver_device(device));
    *context = context_primary(device);
    return CUDA_SUCCESS;
}

/* Loads a module of a registered fat binary into the current context, as libcudart 11.8 does.
 * Versions 12 and later load libraries by cuLibraryLoadData. */
static CUresult load_fat_binary(CUmodule *module, const void *wrapper) {
    return cuModuleLoadFatBinary(module, wrapper);
}

/* Notes that the fat binary will not be loaded again. */
static CUresult forget_fat_binary(const void *wrapper) {
    (void)wrapper;
    return CUDA_SUCCESS;
}

/* Since 12.9, libcudart calls this before anything else. The name is from ZLUDA. */
static CUresult load_compilers(void) {
    return CUDA_SUCCESS;
}

static const entry cudart_interface[] = {
    SIZE(13),
    no_CUDART_INTERFACE,
    primary_context,
    no_CUDART_INTERFACE,
    no_CUDART_INTERFACE,
    no_CUDART_INTERFACE,
    load_fat_binary,
    forget_fat_binary,
    no_CUDART_INTERFACE,
    no_CUDART_INTERFACE,
    no_CUDART_INTERFACE,
    no_CUDART_INTERFACE,
    load_compilers,
};

/* ---- TOOLS_RUNTIME_CALLBACK_HOOKS: for profilers ------------------------------------------------- */

NOT_SIMULATED(TOOLS_RUNTIME_CALLBACK_HOOKS)

/* Numbers that libcudart reads. Their meaning is not known; zeros work. */
static uint32_t first_numbers[1024], second_numbers[14];

static void get_first_numbers(void **numbers, size_t *count) {
    *numbers = first_numbers;
    *count = sizeof first_numbers / sizeof *first_numbers;
}

static void get_second_numbers(void **numbers, size_t *count) {
    *numbers = second_numbers;
    *count = sizeof second_numbers / sizeof *second_numbers;
}

static const entry tools_runtime_callback_hooks[] = {
    SIZE(7),
    no_TOOLS_RUNTIME_CALLBACK_HOOKS,
    get_first_numbers,
    no_TOOLS_RUNTIME_CALLBACK_HOOKS,
    no_TOOLS_RUNTIME_CALLBACK_HOOKS,
    no_TOOLS_RUNTIME_CALLBACK_HOOKS,
    get_second_numbers,
};

/* ---- TOOLS_TLS: libcudart requires that the table exists ----------------------------------------- */

NOT_SIMULATED(TOOLS_TLS)

/* cuBLAS calls the second entry before each operation. On a real driver, that entry was observed to
 * return the result of cuCtxGetCurrent. */
static const entry tools_tls[] = {SIZE(4), no_TOOLS_TLS, cuCtxGetCurrent, no_TOOLS_TLS};

/* ---- CONTEXT_LOCAL_STORAGE: see storage.h -------------------------------------------------------- */

NOT_SIMULATED(CONTEXT_LOCAL_STORAGE_INTERFACE_V0301)

static const entry context_local_storage[] = {
    storage_put,
    storage_remove,
    storage_get,
    no_CONTEXT_LOCAL_STORAGE_INTERFACE_V0301,
};

/* ---- checks of contexts, since 12: they never report a problem ------------------------------------ */

NOT_SIMULATED(UNKNOWN_CHECKS)

static CUresult check_context(CUcontext context, uint32_t *found, const void **what) {
    (void)context, (void)what;
    *found = 0;
    return CUDA_SUCCESS;
}

static uint32_t check(void) {
    return 0;
}

static const entry unknown_checks[] = {SIZE(4), no_UNKNOWN_CHECKS, check_context, check};

/* ---- a table without a known name, which libcudart since 13.4 requires to exist ------------------- */

NOT_SIMULATED(21318C60)

/* cuBLAS calls this before each operation. The type was observed on a real driver. */
static CUresult context_number(CUcontext context, unsigned long long *number) {
    return cuCtxGetId(context, number);
}

/* The number of entries that was observed in a driver of series 595. */
enum { NAMELESS_ENTRIES = 95 };

static const entry nameless[NAMELESS_ENTRIES] = {
    SIZE(NAMELESS_ENTRIES),
    no_21318C60,
    no_21318C60,
    no_21318C60,
    context_number,
    [5 ... NAMELESS_ENTRIES - 1] = no_21318C60,
};

/* ---- INTEGRITY_CHECK: see handshake.h ------------------------------------------------------------- */

NOT_SIMULATED(INTEGRITY_CHECK)

static CUresult prove(uint32_t version, uint64_t seconds, uint8_t proof[HANDSHAKE_BYTES]);

static const entry integrity_check[] = {SIZE(3), prove, no_INTEGRITY_CHECK};

static CUresult prove(uint32_t version, uint64_t seconds, uint8_t proof[HANDSHAKE_BYTES]) {
    const struct handshake asked = {version, seconds, cudart_interface, integrity_check,
                                    integrity_check[1]};
    return handshake_prove(&asked, proof);
}

/* -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *id;
    const entry *table;
} tables[] = {
    {"6bd5fb6c5bf4e74a8987d93912fd9df9", cudart_interface},
    {"a094798c2e742e7493f20800200c0a66", tools_runtime_callback_hooks},
    {"42d85a8123f6cb478298f6e78a3aecdc", tools_tls},
    {"c693336e1121df11a8c368f355d89593", context_local_storage},
    {"263e88607cd2614392f6bbd5006dfa7e", unknown_checks},
    {"21318c60971432488ca641ff7324c8f2", nameless},
    {"d4082055bde6704b8d34ba123c66e1f2", integrity_check},
};

static const entry *find(const char *id) {
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(tables[i].id, id) == 0) return tables[i].table;
    return NULL;
}

static void trace(const char *id) {
    char name[64];
    snprintf(name, sizeof name, "cuGetExportTable(%s)", id);
    missing(name, 0);
}

API CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    char text[2 * sizeof *id + 1];
    if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof *id; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)id->bytes[i]);
    *table = find(text);
    if (!*table) trace(text);
    return *table ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
