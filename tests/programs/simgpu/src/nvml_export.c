/*
 * nvmlInternalGetExportTable: a table of functions that the driver publishes nowhere, and without which
 * NVIDIA's nvidia-smi says that it does not belong to this NVML. The first word of the table is its size
 * in bytes; its end grows with each driver (1,536 bytes in 450.248.02, 2,040 in 555.58.02). No function
 * of it is simulated: nvidia-smi shows N/A, or calls a published function instead.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "missing.h"
#include "nvml.h"

#define WORDS 512 /* a table longer than nvidia-smi knows does not disturb it */

static const uint8_t id_of_table[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                        0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

static nvmlReturn_t not_supported(void) {
    missing("a function of nvmlInternalGetExportTable", 0);
    return NVML_ERROR_NOT_SUPPORTED;
}

typedef union {
    size_t bytes;
    nvmlReturn_t (*function)(void);
} word;

static const word table[WORDS] = {
    [0] = {.bytes = sizeof table},
    [1 ... WORDS - 1] = {.function = not_supported},
};

API nvmlReturn_t nvmlInternalGetExportTable(const void **found, const void *id) {
    if (!found || !id) return NVML_ERROR_INVALID_ARGUMENT;
    bool known = memcmp(id, id_of_table, sizeof id_of_table) == 0;
    *found = known ? table : NULL;
    return known ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
