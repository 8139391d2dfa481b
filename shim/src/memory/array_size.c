#include "memory/array_size.h"

#include "base/numbers.h"
#include "mizar_regions.h"

#define ROW_UNIT 512 /* bytes; no layout is known to pad rows to a larger multiple */
#define BLOCK_ROWS 8 /* rows in the smallest block of a block-linear layout */
#define FACES (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) /* depth counts images, of any level */
#define BLOCK_ROWS_MAX 128 /* rows in the largest block */

/* Saturates instead of wrapping, as times() does. */
static uint64_t round_up(uint64_t value, uint64_t unit) {
    return value > MIZAR_BYTES_MAX ? MIZAR_BYTES_MAX + 1 : (value + unit - 1) / unit * unit;
}

/* Bytes of one channel. Compressed and planar formats count as one byte, which is their maximum. */
static uint64_t channel_bytes(int format) {
    switch (format) {
        case 0x01: case 0x08: case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8:
            return 1;
        case 0x02: case 0x09: case 0x10: case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca:
        case 0xcb:
            return 2;
        case 0x03: case 0x0a: case 0x20:
            return 4;
        default:
            return format >= 0x91 && format <= 0x9e ? 1 : 4;
    }
}

/* Rows of a block, which is lower for an image of small height. */
static uint64_t block_rows(uint64_t height) {
    uint64_t rows = BLOCK_ROWS;
    while (rows < BLOCK_ROWS_MAX && rows < height) rows *= 2;
    return rows;
}

static uint64_t times(uint64_t a, uint64_t b) {
    return b && a > MIZAR_BYTES_MAX / b ? MIZAR_BYTES_MAX + 1 : a * b;
}

static uint64_t level_bytes(uint64_t element, uint64_t width, uint64_t height, uint64_t depth) {
    uint64_t row = round_up(larger(times(width, element), 1), ROW_UNIT);
    uint64_t rows = round_up(larger(height, 1), block_rows(height));
    return times(times(row, rows), larger(depth, 1));
}

uint64_t array_element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    return channel_bytes(descriptor->format) * larger(descriptor->channels, 1);
}

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    uint64_t element = array_element_bytes(descriptor), bytes = 0;
    if (descriptor->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
    for (unsigned level = 0; level < levels && level < 32; level++) {
        bytes += level_bytes(element, descriptor->width >> level, descriptor->height >> level,
                             descriptor->depth >> (descriptor->flags & FACES ? 0 : level));
        if (bytes > MIZAR_BYTES_MAX) return MIZAR_BYTES_MAX + 1;
    }
    return bytes;
}
