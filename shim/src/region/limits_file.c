#include "region/limits_file.h"

#include <string.h>

/* How often a read is tried while the file is being written. */
#define ATTEMPTS 64

const char limits_file_busy[] = "is being written and never finished";

/* zlib's CRC-32, a nibble at a time. */
static uint32_t crc_of(const void *data, size_t bytes) {
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
        0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    const unsigned char *byte = data;
    uint32_t crc = UINT32_MAX;
    while (bytes--) {
        crc ^= *byte++;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

static const char *check(const struct mizar_limits *copy) {
    if (copy->state != MIZAR_STATE_READY) return "is empty: the node agent has not written it yet";
    if (memcmp(copy->magic, MIZAR_LIMITS_MAGIC, sizeof copy->magic)) return "is not a limits file";
    if (copy->version != MIZAR_REGIONS_VERSION) return "has a different version from this shim";
    if (copy->size != MIZAR_LIMITS_SIZE) return "has the wrong size";
    if (crc_of((const char *)copy + MIZAR_LIMITS_CRC_FROM,
               MIZAR_LIMITS_CRC_TO - MIZAR_LIMITS_CRC_FROM) != copy->crc)
        return "is damaged";
    if (copy->card_count > MIZAR_CARD_MAX) return "names too many cards";
    return NULL;
}

/* Copies atomically word by word, since a writer may be active. The caller discards a torn copy. */
static void copy_words(const struct mizar_limits *from, struct mizar_limits *to) {
    const uint32_t *source = (const uint32_t *)(const void *)from;
    uint32_t *target = (uint32_t *)(void *)to;
    for (size_t i = 0; i < MIZAR_LIMITS_CRC_TO / sizeof *source; i++)
        target[i] = __atomic_load_n(&source[i], __ATOMIC_ACQUIRE);
}

const char *limits_file_read(const struct mizar_limits *limits, struct limits_file_copy *copy) {
    struct mizar_limits whole;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        uint32_t seq = __atomic_load_n(&limits->seq, __ATOMIC_ACQUIRE);
        if (seq & 1) continue;
        copy_words(limits, &whole);
        if (__atomic_load_n(&limits->seq, __ATOMIC_RELAXED) != seq) continue;
        const char *wrong = check(&whole);
        if (wrong) return wrong;
        for (unsigned i = 0; i < MIZAR_CARD_MAX; i++) whole.cards[i].uuid[MIZAR_UUID_SIZE - 1] = 0;
        memcpy(copy->cards, whole.cards, sizeof copy->cards);
        copy->card_count = whole.card_count;
        copy->seq = seq;
        return NULL;
    }
    return limits_file_busy;
}
