/* The check by which libcudart makes sure that the driver is NVIDIA's.
 *
 * libcudart calls it three times, for versions that end with 0, 1 and 2, and compares the results
 * with its own (12 and later only the last one). The inputs, and the two numbers that it expects
 * first, are facts found out by the ZLUDA project (github.com/vosen/ZLUDA, dark_api/src/lib.rs,
 * integrity_check); that the result is an HMAC with MD2 was found out here. */
#ifndef SIM_HANDSHAKE_H
#define SIM_HANDSHAKE_H

#include "driver.h"
#include "md2.h"

enum { HANDSHAKE_BYTES = MD2_BYTES };

struct handshake {
    uint32_t version; /* the runtime's version, plus 0, 1 or 2 for the number of the call */
    uint64_t seconds; /* since 1970 */
    const void *cudart_table, *own_table, *function;
};

CUresult handshake_prove(const struct handshake *asked, uint8_t proof[HANDSHAKE_BYTES]);

#endif
