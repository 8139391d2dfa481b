/* Reading the limits region: a seqlock with a checksum. No state; see regions.h for that. */
#ifndef MIZAR_LIMITS_FILE_H
#define MIZAR_LIMITS_FILE_H

#include "mizar_regions.h"

/* The part of the limits that the seqlock guards. */
struct limits_file_copy {
    struct mizar_limits_card cards[MIZAR_CARD_MAX];
    uint32_t card_count;
    uint32_t seq;
};

/* The answer of limits_file_read that may be different in a moment. */
extern const char limits_file_busy[];

/* NULL when `copy` holds a sound reading; otherwise what is wrong, for a message. */
const char *limits_file_read(const struct mizar_limits *limits, struct limits_file_copy *copy);

uint32_t limits_file_crc(const void *data, size_t bytes);

#endif
