#include "memory/reclaim.h"

bool reclaim_unused(struct regions *regions, int card) {
    bool any = false;
    for (reclaimer *const *each = reclaimers; *each; each++) any = (*each)(regions, card) || any;
    return any;
}
