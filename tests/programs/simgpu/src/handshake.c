#include "handshake.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

CUresult cuDriverGetVersion(int *version);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);

static const uint8_t key[MD2_BYTES] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                       0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};

/* The results expected from the first and the second call, as little-endian numbers. */
static const uint64_t first[] = {0x3341181c03cb675c, 0x8ed383aa1f4cd1e8};
static const uint64_t second[] = {0x1841181c03cb675c, 0x8ed383aa1f4cd1e8};

static CUresult add_process(struct md2 *code, const struct handshake *asked) {
    struct {
        int driver_version;
        uint32_t version, process, thread;
        const void *cudart_table, *own_table, *function;
        uint64_t seconds;
    } said = {.version = asked->version,
              .process = (uint32_t)getpid(),
              .thread = (uint32_t)pthread_self(),
              .cudart_table = asked->cudart_table,
              .own_table = asked->own_table,
              .function = asked->function,
              .seconds = asked->seconds};
    TRY(cuDriverGetVersion(&said.driver_version));
    md2_add(code, &said, sizeof said);
    return CUDA_SUCCESS;
}

static CUresult add_device(struct md2 *code, CUdevice device) {
    enum { PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50 };
    struct {
        CUuuid uuid;
        int domain, bus, device;
    } said;
    TRY(cuDeviceGetUuid(&said.uuid, device));
    TRY(cuDeviceGetAttribute(&said.domain, PCI_DOMAIN, device));
    TRY(cuDeviceGetAttribute(&said.bus, PCI_BUS, device));
    TRY(cuDeviceGetAttribute(&said.device, PCI_DEVICE, device));
    md2_add(code, &said, sizeof said);
    return CUDA_SUCCESS;
}

static CUresult prove_third(const struct handshake *asked, uint8_t proof[HANDSHAKE_BYTES]) {
    struct md2 code;
    hmac_md2_start(&code, key);
    TRY(add_process(&code, asked));
    for (CUdevice device = 0; device < driver.count; device++) TRY(add_device(&code, device));
    hmac_md2_finish(&code, key, proof);
    return CUDA_SUCCESS;
}

CUresult handshake_prove(const struct handshake *asked, uint8_t proof[HANDSHAKE_BYTES]) {
    unsigned question = asked->version % 10;
    if (question > 1) return prove_third(asked, proof);
    memcpy(proof, question ? second : first, HANDSHAKE_BYTES);
    return CUDA_SUCCESS;
}
