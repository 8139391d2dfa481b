/*
 * Prints the layout of the shared regions as JSON, for the test that compares the node agent's
 * Python copy with it.
 */
#include <stdio.h>

#include "mizar_regions.h"

#define PRINT_SIZE(s, bytes) printf("%s\n    \"" #s "\": %zu", comma++ ? "," : "", sizeof(struct s));
#define PRINT_FIELD(s, f, at, bytes)                                            \
    printf("%s\n    \"" #s "." #f "\": [%zu, %zu]", comma++ ? "," : "", offsetof(struct s, f), \
           sizeof(((struct s *)0)->f));
#define PRINT_CONSTANT(name) printf("%s\n    \"" #name "\": %llu", comma++ ? "," : "", (unsigned long long)(name));

#define CONSTANTS(C)                                                                                  \
    C(MIZAR_REGIONS_VERSION) C(MIZAR_CARD_MAX) C(MIZAR_SLOT_MAX) C(MIZAR_UUID_SIZE)                   \
    C(MIZAR_STATE_EMPTY) C(MIZAR_STATE_READY) C(MIZAR_MEMORY_HARD) C(MIZAR_MEMORY_OVERSUBSCRIBE)      \
    C(MIZAR_COMPUTE_NONE) C(MIZAR_COMPUTE_HARD) C(MIZAR_COMPUTE_SOFT) C(MIZAR_COMPUTE_WEIGHTED)       \
    C(MIZAR_COMPUTE_STOPPED)                                                                          \
    C(MIZAR_SHARE_FULL) C(MIZAR_BYTES_MAX) C(MIZAR_CODE_PAGE) C(MIZAR_CODE_PER_PAGE) C(MIZAR_WINDOW_BITS) C(MIZAR_WINDOW_VALID) C(MIZAR_LIMITS_SIZE) C(MIZAR_LIMITS_CRC_FROM)              \
    C(MIZAR_LIMITS_CRC_TO) C(MIZAR_USAGE_SIZE) C(MIZAR_SLOT_LOCK(0)) C(MIZAR_SLOT_LOCK(1))            \
    C(MIZAR_SHIM_VERSION) C(MIZAR_SHIM_PAST) C(MIZAR_COPY_TO_DEVICE) C(MIZAR_COPY_TO_HOST) C(MIZAR_COPY_DEVICES)         \
    C(MIZAR_COPY_OTHER) C(MIZAR_MEMSET) C(MIZAR_COPY_KINDS)

int main(void) {
    int comma = 0;
    printf("{\n  \"magic\": {\"limits\": \"%s\", \"usage\": \"%s\"},\n  \"constants\": {",
           MIZAR_LIMITS_MAGIC, MIZAR_USAGE_MAGIC);
    CONSTANTS(PRINT_CONSTANT)
    comma = 0;
    printf("\n  },\n  \"sizes\": {");
    MIZAR_LAYOUT_SIZES(PRINT_SIZE)
    comma = 0;
    printf("\n  },\n  \"fields\": {");
    MIZAR_LAYOUT(PRINT_FIELD)
    printf("\n  }\n}\n");
    return 0;
}
