/* How libcudart makes sure that it has a driver of NVIDIA's before it.
 *
 * It asks three times, for versions that end with 0, 1 and 2, and compares the answers with its own (12
 * and later the last one only). What goes into them, and the two numbers that it expects first, are
 * facts that the ZLUDA project found out (github.com/vosen/ZLUDA, dark_api/src/lib.rs, integrity_check);
 * that it is HMAC with MD2 was seen here. */
#ifndef SIM_HANDSHAKE_H
#define SIM_HANDSHAKE_H

#include "driver.h"
#include "md2.h"

enum { HANDSHAKE_BYTES = MD2_BYTES };

struct handshake {
    uint32_t version; /* the runtime's, plus 0, 1 or 2: which question it is */
    uint64_t seconds; /* since 1970 */
    const void *cudart_table, *own_table, *function;
};

CUresult handshake_prove(const struct handshake *asked, uint8_t proof[HANDSHAKE_BYTES]);

#endif
