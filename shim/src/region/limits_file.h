/*
 * Reads the limits region, which is protected by a seqlock and a checksum. Stateless; the last good
 * copy is kept by regions.h.
 */
#ifndef MIZAR_LIMITS_FILE_H
#define MIZAR_LIMITS_FILE_H

#include "mizar_regions.h"

/* The part of the limits that the seqlock guards. */
struct limits_file_copy {
    struct mizar_limits_card cards[MIZAR_CARD_MAX];
    uint32_t card_count;
    uint32_t seq;
};

/* The result of limits_file_read() for a region that is being written; a retry may succeed. */
extern const char limits_file_busy[];

/* Reads the limits into `copy`. Returns NULL on success, otherwise what is wrong, for a message. */
const char *limits_file_read(const struct mizar_limits *limits, struct limits_file_copy *copy);

#endif
