/* MD2 (RFC 1319), and HMAC (RFC 2104) with it. */
#ifndef SIM_MD2_H
#define SIM_MD2_H

#include <stddef.h>
#include <stdint.h>

enum { MD2_BYTES = 16 }; /* bytes of a block, a digest and a key */

struct md2 {
    uint8_t state[3 * MD2_BYTES], checksum[MD2_BYTES], block[MD2_BYTES];
    size_t filled; /* bytes in the block */
};

/* HMAC of all data added between start and end, which must get the same `key`. */
void hmac_md2_start(struct md2 *code, const uint8_t key[MD2_BYTES]);
void md2_add(struct md2 *code, const void *data, size_t bytes);
void hmac_md2_finish(struct md2 *code, const uint8_t key[MD2_BYTES], uint8_t digest[MD2_BYTES]);

#endif
