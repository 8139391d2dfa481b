/* MD2, as RFC 1319 describes it, and an authentication code made of it, as RFC 2104 does. */
#ifndef SIM_MD2_H
#define SIM_MD2_H

#include <stddef.h>
#include <stdint.h>

enum { MD2_BYTES = 16 }; /* of a block, a digest, and a key */

struct md2 {
    uint8_t state[3 * MD2_BYTES], checksum[MD2_BYTES], block[MD2_BYTES];
    size_t filled; /* of the block */
};

/* A code over all that is added between the two; `key` is the same in both. */
void hmac_md2_start(struct md2 *code, const uint8_t key[MD2_BYTES]);
void md2_add(struct md2 *code, const void *data, size_t bytes);
void hmac_md2_finish(struct md2 *code, const uint8_t key[MD2_BYTES], uint8_t digest[MD2_BYTES]);

#endif
