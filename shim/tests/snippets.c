/*
 * One snippet per hook: `snippets NAME WAY` runs one of them with the functions looked up that way.
 * The limits file allows 64 MiB on card 0 and 32 MiB on card 1; cards 2 and up are not in it.
 */
#include <stdbool.h>
#include <string.h>

#include "api.h"
#include "check.h"

#define LIMIT (64 * MIB)

static CUstream stream;

/* ---- the ways to take and to give memory, alike for every hook ---- */

typedef CUresult take_function(CUdeviceptr *pointer, size_t bytes);
typedef CUresult give_function(CUdeviceptr pointer);

static CUresult take_plain_v1(CUdeviceptr *pointer, size_t bytes) {
    CUdeviceptr_v1 narrow = 0;
    CUresult result = api.cuMemAlloc(&narrow, (unsigned)bytes);
    *pointer = narrow;
    return result;
}
static CUresult take_plain(CUdeviceptr *pointer, size_t bytes) {
    return api.cuMemAlloc_v2(pointer, bytes);
}
static CUresult take_pitch_v1(CUdeviceptr *pointer, size_t bytes) {
    CUdeviceptr_v1 narrow = 0;
    unsigned pitch;
    CUresult result = api.cuMemAllocPitch(&narrow, &pitch, 1024, (unsigned)(bytes / 1024), 4);
    *pointer = narrow;
    return result;
}
static CUresult take_pitch(CUdeviceptr *pointer, size_t bytes) {
    size_t pitch;
    return api.cuMemAllocPitch_v2(pointer, &pitch, 1024, bytes / 1024, 4);
}
static CUresult take_managed(CUdeviceptr *pointer, size_t bytes) {
    return api.cuMemAllocManaged(pointer, bytes, 1);
}
static CUresult take_async(CUdeviceptr *pointer, size_t bytes) {
    return api.cuMemAllocAsync(pointer, bytes, stream);
}
static CUresult take_async_ptsz(CUdeviceptr *pointer, size_t bytes) {
    return api.cuMemAllocAsync_ptsz(pointer, bytes, NULL);
}
static CUresult take_pool(CUdeviceptr *pointer, size_t bytes) {
    return api.cuMemAllocFromPoolAsync(pointer, bytes, NULL, stream);
}
static CUresult take_pool_ptsz(CUdeviceptr *pointer, size_t bytes) {
    return api.cuMemAllocFromPoolAsync_ptsz(pointer, bytes, NULL, NULL);
}
static CUresult give_plain_v1(CUdeviceptr pointer) {
    return api.cuMemFree((CUdeviceptr_v1)pointer);
}
static CUresult give_plain(CUdeviceptr pointer) {
    return api.cuMemFree_v2(pointer);
}
static CUresult give_async(CUdeviceptr pointer) {
    return api.cuMemFreeAsync(pointer, stream);
}
static CUresult give_async_ptsz(CUdeviceptr pointer) {
    return api.cuMemFreeAsync_ptsz(pointer, NULL);
}

static const struct {
    const char *name;
    take_function *take;
    int call;
} takers[] = {
    {"cuMemAlloc", take_plain_v1, FAKE_cuMemAlloc},
    {"cuMemAlloc_v2", take_plain, FAKE_cuMemAlloc_v2},
    {"cuMemAllocPitch", take_pitch_v1, FAKE_cuMemAllocPitch},
    {"cuMemAllocPitch_v2", take_pitch, FAKE_cuMemAllocPitch_v2},
    {"cuMemAllocManaged", take_managed, FAKE_cuMemAllocManaged},
    {"cuMemAllocAsync", take_async, FAKE_cuMemAllocAsync},
    {"cuMemAllocAsync_ptsz", take_async_ptsz, FAKE_cuMemAllocAsync_ptsz},
    {"cuMemAllocFromPoolAsync", take_pool, FAKE_cuMemAllocFromPoolAsync},
    {"cuMemAllocFromPoolAsync_ptsz", take_pool_ptsz, FAKE_cuMemAllocFromPoolAsync_ptsz},
};

static const struct {
    const char *name;
    give_function *give;
    int call;
} givers[] = {
    {"cuMemFree", give_plain_v1, FAKE_cuMemFree},
    {"cuMemFree_v2", give_plain, FAKE_cuMemFree_v2},
    {"cuMemFreeAsync", give_async, FAKE_cuMemFreeAsync},
    {"cuMemFreeAsync_ptsz", give_async_ptsz, FAKE_cuMemFreeAsync_ptsz},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- snippets ---- */

/* Within the limit it reaches exactly this entry of the driver; beyond it the driver is not asked. */
static void taker(size_t which) {
    CUdeviceptr pointer = 0, other = 0;
    uint64_t *calls = &fake.calls[takers[which].call];
    CHECK_IS(takers[which].take(&pointer, 40 * MIB), CUDA_SUCCESS);
    CHECK(pointer);
    CHECK_IS(*calls, 1);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(takers[which].take(&other, 26 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(*calls, 1);
    CHECK_IS(takers[which].take(&other, 24 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), LIMIT);
    CHECK_IS(api.cuMemFree_v2(other), CUDA_SUCCESS);
    fake.fail = 999; /* what the driver refuses is not counted */
    CHECK_IS(takers[which].take(&other, 2 * MIB), 999);
    CHECK_IS(api.cuMemFree_v2(pointer), 999);
    CHECK_IS(api_used(0), 40 * MIB);
    fake.fail = 0;
    CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* Gives back what any of the takers took, through exactly this entry of the driver. */
static void giver(size_t which) {
    for (size_t i = 0; i < COUNT(takers); i++) {
        CUdeviceptr pointer = 0;
        CHECK_IS(takers[i].take(&pointer, 20 * MIB), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 20 * MIB);
        CHECK_IS(givers[which].give(pointer), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 0);
        CHECK_IS(givers[which].give(pointer), CUDA_SUCCESS); /* unknown now: the driver's affair */
        CHECK_IS(api_used(0), 0);
        CHECK_IS(fake.calls[givers[which].call], 2 * (i + 1));
    }
}

static void init(void) {
    CHECK_IS(fake.calls[FAKE_cuInit], 1);
    CHECK_IS(api_usage()->attached, 1);
    CHECK_IS(api_usage()->shim_version, MIZAR_SHIM_VERSION);
}

static void pitch(void) {
    CUdeviceptr pointer;
    size_t row;
    CHECK_IS(api.cuMemAllocPitch_v2(&pointer, &row, 513, 2048, 4), CUDA_SUCCESS);
    CHECK_IS(row, 1024);
    CHECK_IS(api_used(0), 2 * MIB);
    fake.pitch_unit = 4096; /* more than expected: corrected afterwards */
    CHECK_IS(api.cuMemAllocPitch_v2(&pointer, &row, 513, 2048, 4), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 10 * MIB);
    CHECK_IS(api.cuMemAllocPitch_v2(&pointer, &row, 513, 50 * 1024, 4), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuMemFree_v2], 1);
    CHECK_IS(api_used(0), 10 * MIB);
    CHECK_IS(api.cuMemAllocPitch_v2(&pointer, &row, SIZE_MAX, SIZE_MAX, 4),
             CUDA_ERROR_OUT_OF_MEMORY);
}

static void info(void) {
    CUdeviceptr pointer;
    size_t free_now, total;
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 24 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuMemGetInfo_v2(&free_now, &total), CUDA_SUCCESS);
    CHECK_IS(total, LIMIT);
    CHECK_IS(free_now, 40 * MIB);
    fake.others = fake.total - 10 * MIB; /* the card itself has less left */
    CHECK_IS(api.cuMemGetInfo_v2(&free_now, &total), CUDA_SUCCESS);
    CHECK_IS(free_now, 10 * MIB);
    fake.others = 0;
    api_use(1);
    CHECK_IS(api.cuMemGetInfo_v2(&free_now, &total), CUDA_SUCCESS);
    CHECK_IS(total, 32 * MIB);
    CHECK_IS(free_now, 32 * MIB);
}

static void info_v1(void) {
    unsigned free_now, total;
    CHECK_IS(api.cuMemGetInfo(&free_now, &total), CUDA_SUCCESS);
    CHECK_IS(total, LIMIT);
    CHECK_IS(free_now, LIMIT);
}

static void total(void) {
    size_t bytes;
    CHECK_IS(api.cuDeviceTotalMem_v2(&bytes, 0), CUDA_SUCCESS);
    CHECK_IS(bytes, LIMIT);
    CHECK_IS(api.cuDeviceTotalMem_v2(&bytes, 1), CUDA_SUCCESS);
    CHECK_IS(bytes, 32 * MIB);
}

static void total_v1(void) {
    unsigned bytes;
    CHECK_IS(api.cuDeviceTotalMem(&bytes, 0), CUDA_SUCCESS);
    CHECK_IS(bytes, LIMIT);
}

static void nvml(void) {
    CUdeviceptr pointer;
    nvmlDevice_t device;
    nvmlMemory_t memory;
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 24 * MIB), CUDA_SUCCESS);
    CHECK_IS(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    CHECK_IS(api.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    CHECK_IS(memory.total, LIMIT);
    CHECK_IS(memory.used, 24 * MIB);
    CHECK_IS(memory.free, 40 * MIB);
    CHECK_IS(fake_nvml_calls, 1);
}

static void nvml_v2(void) {
    CUdeviceptr pointer;
    nvmlDevice_t device;
    nvmlMemory_v2_t memory = {.version = 2};
    api_use(1);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 4 * MIB), CUDA_SUCCESS);
    CHECK_IS(nvmlDeviceGetHandleByIndex_v2(1, &device), NVML_SUCCESS);
    CHECK_IS(api.nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_SUCCESS);
    CHECK_IS(memory.version, 2);
    CHECK_IS(memory.total, 32 * MIB);
    CHECK_IS(memory.used, 4 * MIB);
    CHECK_IS(memory.free, 28 * MIB);
    CHECK_IS(memory.reserved, 0);
    CHECK_IS(fake_nvml_calls, 1);
}

/* Device 2 is there, but not in the limits. */
static void foreign_card(void) {
    CUdeviceptr pointer;
    size_t free_now, all;
    api_use(2);
    for (size_t i = 0; i < COUNT(takers); i++) {
        if (strstr(takers[i].name, "Async") && !strstr(takers[i].name, "_ptsz")) continue;
        CHECK_IS(takers[i].take(&pointer, 512), CUDA_ERROR_OUT_OF_MEMORY);
    }
    CHECK_IS(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    api_use(0); /* the stream counts, not the current context */
    CHECK_IS(api.cuMemAllocAsync(&pointer, 512, stream), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, 512, NULL, stream), CUDA_ERROR_OUT_OF_MEMORY);
    api_use(2);
    CHECK_IS(api.cuMemGetInfo_v2(&free_now, &all), CUDA_SUCCESS);
    CHECK_IS(free_now, 0);
    CHECK_IS(all, fake.total);
}

/* Many small ones, and 100,000 at once: each is found again. */
static void many(void) {
    enum { LIVE = 100000 };
    static CUdeviceptr pointers[LIVE];
    for (int i = 0; i < LIVE; i++) CHECK_IS(api.cuMemAlloc_v2(&pointers[i], 512), CUDA_SUCCESS);
    CHECK_IS(api_used(0), LIVE * 512);
    for (int i = LIVE; i--;) CHECK_IS(api.cuMemFree_v2(pointers[i * 7919ll % LIVE]), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} snippets[] = {
    {"cuInit", init},
    {"pitch", pitch},
    {"cuMemGetInfo", info_v1},
    {"cuMemGetInfo_v2", info},
    {"cuDeviceTotalMem", total_v1},
    {"cuDeviceTotalMem_v2", total},
    {"nvmlDeviceGetMemoryInfo", nvml},
    {"nvmlDeviceGetMemoryInfo_v2", nvml_v2},
    {"foreign_card", foreign_card},
    {"many", many},
};

static int list(void) {
    for (size_t i = 0; i < COUNT(takers); i++) puts(takers[i].name);
    for (size_t i = 0; i < COUNT(givers); i++) puts(givers[i].name);
    for (size_t i = 0; i < COUNT(snippets); i++) puts(snippets[i].name);
    return 0;
}

static bool run(const char *name) {
    bool found = false;
    for (size_t i = 0; i < COUNT(takers); i++)
        if (!strcmp(takers[i].name, name)) taker(i), found = true;
    for (size_t i = 0; i < COUNT(givers); i++)
        if (!strcmp(givers[i].name, name)) giver(i), found = true;
    for (size_t i = 0; i < COUNT(snippets); i++)
        if (!strcmp(snippets[i].name, name)) snippets[i].run(), found = true;
    return found;
}

int main(int count, char **arguments) {
    if (count < 3) return list();
    api_load(arguments[2]);
    api_start();
    CHECK_IS(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    CHECK(run(arguments[1]));
    return 0;
}
