/* Devices: their names, UUIDs, sizes and attributes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static const struct sim_card *card_of(CUdevice device) {
    return &driver.sim.state->cards[driver.card[device]];
}

API CUresult cuDriverGetVersion(int *version) {
    struct sim look;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    if (!driver_ready()) {
        *version = (int)driver.sim.state->cuda_version;
        return CUDA_SUCCESS;
    }
    if (sim_open(&look, sim_path())) return CUDA_ERROR_NO_DEVICE;
    *version = (int)look.state->cuda_version;
    sim_close(&look);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
    TRY(driver_ready());
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = driver.count;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    TRY(driver_device(ordinal));
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    TRY(driver_device(device));
    if (!name || length < 1) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", card_of(device)->name);
    return CUDA_SUCCESS;
}

/* Parses "GPU-xxxxxxxx-xxxx-..." or "MIG-..." into the 16 bytes of the UUID. */
static void parse_uuid(const char *text, char bytes[16]) {
    char digits[3] = {0};
    text += 4;
    for (int i = 0; i < 16; i++) {
        while (*text == '-') text++;
        memcpy(digits, text, 2);
        bytes[i] = (char)strtoul(digits, NULL, 16);
        text += 2;
    }
}

static unsigned whole_card_of(CUdevice device) {
    return sim_card_whole(&driver.sim, driver.card[device]);
}

/* The first version returns the UUID of a MIG instance's card ... */
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    TRY(driver_device(device));
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    parse_uuid(driver.sim.state->cards[whole_card_of(device)].uuid, uuid->bytes);
    return CUDA_SUCCESS;
}

/* ... and the second one that of the instance itself. */
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    TRY(driver_device(device));
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    parse_uuid(card_of(device)->uuid, uuid->bytes);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    TRY(driver_device(device));
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = card_of(device)->memory_bytes;
    return CUDA_SUCCESS;
}

/* The 32-bit entry points of CUDA 2 saturate. */
API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    size_t all;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    TRY(cuDeviceTotalMem_v2(&all, device));
    *bytes = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    TRY(driver_device(device));
    *major = (int)card_of(device)->compute_major;
    *minor = (int)card_of(device)->compute_minor;
    return CUDA_SUCCESS;
}

/* The attributes that programs ask for, by their public numbers; all others are 0. */
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    TRY(driver_device(device));
    if (!value || attribute < 1) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card *card = card_of(device);
    switch (attribute) {
#define ATTRIBUTE(number, name, worth) \
    case number: *value = (int)(worth); break;
#include "attributes.h"
#undef ATTRIBUTE
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
    TRY(driver_device(device));
    if (!id || length < 13) return CUDA_ERROR_INVALID_VALUE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", whole_card_of(device) + 1);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    char own[16];
    TRY(driver_ready());
    if (!device || !id) return CUDA_ERROR_INVALID_VALUE;
    for (CUdevice i = 0; i < driver.count; i++) {
        cuDeviceGetPCIBusId(own, sizeof own, i);
        if (strcmp(own, id) != 0) continue;
        *device = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    TRY(driver_device(device));
    TRY(driver_device(peer));
    *can = device != peer;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer) {
    enum { ACCESS_SUPPORTED = 2 };
    TRY(driver_device(device));
    TRY(driver_device(peer));
    if (!value || device == peer) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice device) {
    (void)type;
    TRY(driver_device(device));
    *supported = 0;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, int format, unsigned channels,
                                                CUdevice device) {
    (void)format, (void)channels;
    TRY(driver_device(device));
    *width = 1 << 28;
    return CUDA_SUCCESS;
}
