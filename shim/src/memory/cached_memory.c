#include "memory/cached_memory.h"

bool cached_memory_release(struct regions *regions, int card) {
    bool any = false;
    for (cached_memory_releaser *const *each = cached_memory_releasers; *each; each++)
        any = (*each)(regions, card) || any;
    return any;
}
