#include "md2.h"

#include <string.h>

enum { ROUNDS = 18, INNER = 0x36, OUTER = 0x5c };

/* A permutation derived from the digits of pi: appendix A.3 of RFC 1319. */
static const uint8_t pi[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,
    243, 192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212,
    224, 22,  103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160,
    251, 245, 142, 187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137,
    11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151,
    3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184,
    56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100,
    113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246,
    28,  70,  97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249,
    206, 186, 197, 234, 38,  44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129,
    77,  82,  106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120,
    136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,  242, 239, 183, 14,
    102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,  80,  180, 143, 237, 31,
    26,  219, 153, 141, 51,  159, 17,  131, 20};

static void mix(uint8_t state[3 * MD2_BYTES]) {
    uint8_t last = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 3 * MD2_BYTES; i++) last = state[i] ^= pi[last];
        last = (uint8_t)(last + round);
    }
}

static void take_block(struct md2 *code) {
    uint8_t last = code->checksum[MD2_BYTES - 1];
    for (int i = 0; i < MD2_BYTES; i++) {
        last = code->checksum[i] ^= pi[code->block[i] ^ last];
        code->state[MD2_BYTES + i] = code->block[i];
        code->state[2 * MD2_BYTES + i] = code->state[i] ^ code->block[i];
    }
    mix(code->state);
    code->filled = 0;
}

void md2_add(struct md2 *code, const void *data, size_t bytes) {
    const uint8_t *from = data;
    for (size_t i = 0; i < bytes; i++) {
        code->block[code->filled++] = from[i];
        if (code->filled == MD2_BYTES) take_block(code);
    }
}

static void finish(struct md2 *code, uint8_t digest[MD2_BYTES]) {
    uint8_t padding[MD2_BYTES], checksum[MD2_BYTES];
    size_t missing = MD2_BYTES - code->filled;
    memset(padding, (int)missing, missing);
    md2_add(code, padding, missing);
    memcpy(checksum, code->checksum, MD2_BYTES);
    md2_add(code, checksum, MD2_BYTES);
    memcpy(digest, code->state, MD2_BYTES);
}

static void start(struct md2 *code, const uint8_t key[MD2_BYTES], uint8_t pad) {
    *code = (struct md2){0};
    for (int i = 0; i < MD2_BYTES; i++) md2_add(code, &(uint8_t){key[i] ^ pad}, 1);
}

void hmac_md2_start(struct md2 *code, const uint8_t key[MD2_BYTES]) {
    start(code, key, INNER);
}

void hmac_md2_finish(struct md2 *code, const uint8_t key[MD2_BYTES], uint8_t digest[MD2_BYTES]) {
    finish(code, digest);
    start(code, key, OUTER);
    md2_add(code, digest, MD2_BYTES);
    finish(code, digest);
}
