/* Copies and fills the bytes of a box. Device memory is memory of this process, so copies are
 * real. */
#include <string.h>

#include "work.h"

static void fill_row(char *row, uint64_t width, uint32_t pattern, unsigned bytes) {
    if (bytes == 1) {
        memset(row, (int)pattern, width);
        return;
    }
    for (uint64_t at = 0; at + bytes <= width; at += bytes) memcpy(row + at, &pattern, bytes);
}

static void run_row(const struct box *box, uint64_t y, uint64_t z) {
    char *to = box->target + z * box->target_slice + y * box->target_pitch;
    if (!box->source) {
        fill_row(to, box->width, box->pattern, box->pattern_bytes);
        return;
    }
    memmove(to, box->source + z * box->source_slice + y * box->source_pitch, box->width);
}

void box_run(const struct box *box) {
    for (uint64_t z = 0; z < box->depth; z++)
        for (uint64_t y = 0; y < box->height; y++) run_row(box, y, z);
}

uint64_t box_bytes(const struct box *box) {
    return box->width * box->height * box->depth;
}
