/*
 * One snippet per hook: `snippets NAME WAY` runs one of them with the functions looked up that way.
 * The limits file allows 64 MiB on card 0 and 32 MiB on card 1; cards 2 and up are not in it.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api.h"
#include "beside.h"
#include "check.h"
#include "region/process_state.h"

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
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS); /* until then, pools keep what was freed */
    fake.fail = 999; /* calls that the driver refuses are not counted */
    CHECK_IS(takers[which].take(&other, 2 * MIB), 999);
    CHECK_IS(api.cuMemFree_v2(pointer), 999);
    CHECK_IS(api_used(0), 40 * MIB);
    fake.fail = 0;
    CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* Frees what any of the takers took, through exactly this entry of the driver. */
static void giver(size_t which) {
    for (size_t i = 0; i < COUNT(takers); i++) {
        CUdeviceptr pointer = 0;
        CHECK_IS(takers[i].take(&pointer, 20 * MIB), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 20 * MIB);
        CHECK_IS(givers[which].give(pointer), CUDA_SUCCESS);
        CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
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
    fake.frees_nothing = 1;
    CHECK_IS(api.cuMemAllocPitch_v2(&pointer, &row, 513, 50 * 1024, 4), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(0), 210 * MIB); /* the memory still exists */
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
    CHECK(fake_nvml_calls > 0);
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
    CHECK(fake_nvml_calls > 0);
}

/* Device 2 is there, but not in the limits. */
static void foreign_card(void) {
    CUcontext context;
    CUdeviceptr pointer;
    CUmemoryPool pool;
    CUmemPoolProps props = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 2}};
    size_t free_now, all;
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&context, 2), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuCtxCreate_v2(&context, 0, 2), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemPoolCreate(&pool, &props), CUDA_ERROR_OUT_OF_MEMORY);
    fake_use(2); /* a context nevertheless */
    CHECK_IS(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    for (size_t i = 0; i < COUNT(takers); i++)
        CHECK_IS(takers[i].take(&pointer, 512), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemGetInfo_v2(&free_now, &all), CUDA_SUCCESS);
    CHECK_IS(free_now, 0);
    CHECK_IS(all, fake.total);
    api_use(0); /* the stream counts, not the current context */
    CHECK_IS(api.cuMemAllocAsync(&pointer, 512, stream), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, 512, NULL, stream), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Many small ones, and 100,000 at once: each is found again. */
static void many(void) {
    enum { LIVE = 100000 };
    static CUdeviceptr pointers[LIVE];
    for (int i = 0; i < LIVE; i++) CHECK_IS(api.cuMemAlloc_v2(&pointers[i], 512), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 50 * MIB); /* 512 bytes each, in pages of 2 MiB */
    for (int i = LIVE; i--;) CHECK_IS(api.cuMemFree_v2(pointers[i * 7919ll % LIVE]), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* ---- physical memory by handle ---- */

static const CUmemAllocationProp on_card = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

/* Lives as long as a handle or a mapping does. */
static void create(void) {
    CUmemGenericAllocationHandle handle, other, same;
    CHECK_IS(api.cuMemCreate(&handle, 40 * MIB, &on_card, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemCreate(&other, 26 * MIB, &on_card, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuMemCreate], 1);
    CHECK_IS(api.cuMemMap(0x1000000, 20 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000 + 20 * MIB, 20 * MIB, 20 * MIB, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB); /* still mapped */
    CHECK_IS(api.cuMemRetainAllocationHandle(&same, (void *)0x1000000), CUDA_SUCCESS);
    CHECK_IS(api.cuMemUnmap(0x1000000, 40 * MIB), CUDA_SUCCESS); /* both mappings */
    CHECK_IS(api_used(0), 40 * MIB); /* there is a handle again */
    CHECK_IS(api.cuMemRelease(same), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* One call may unmap memory of the card together with memory of the host, which is not counted. */
static void unmap_beside_host_memory(void) {
    const CUmemAllocationProp on_host = {.location = {3, 0}}; /* of a NUMA node */
    CUmemGenericAllocationHandle host, card;
    CHECK_IS(api.cuMemCreate(&host, 20 * MIB, &on_host, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemCreate(&card, 40 * MIB, &on_card, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000, 20 * MIB, 0, host, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000 + 20 * MIB, 40 * MIB, 0, card, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuMemRelease(host), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(card), CUDA_SUCCESS);
    CHECK_IS(api.cuMemUnmap(0x1000000, 60 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* Since CUDA 13.4, memory may be asked for in a part of a card, also of a card that has one part. */
static void locality_domain(void) {
    const CUmemLocation part = {6, 1 | 2 << 8}; /* of card 1, the third; `id` holds both */
    const CUmemAllocationProp there = {.type = 1, .location = part};
    const CUmemPoolProps props = {.type = 1, .location = part};
    const CUmemAllocationProp foreign = {.type = 1, .location = {6, 2}};
    CUmemGenericAllocationHandle handle, other;
    CUdeviceptr pointer;
    CUmemoryPool pool;
    CHECK_IS(api.cuMemCreate(&handle, 20 * MIB, &there, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB);
    CHECK_IS(api.cuMemCreate(&other, 20 * MIB, &there, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemCreate(&other, 20 * MIB, &foreign, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
    CHECK_IS(api.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, 20 * MIB, pool, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB);
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, 20 * MIB, pool, stream), CUDA_ERROR_OUT_OF_MEMORY);
}

static void locality_domain_graph(void) {
    CUgraphExec exec;
    fake.graph_location = 6;
    fake.graph_sizes[0] = 20 * MIB;
    CHECK_IS(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)0x1, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 20 * MIB);
}

static void locality_domain_import(void) {
    CUmemGenericAllocationHandle handle;
    fake.graph_location = 6;
    CHECK_IS(api.cuMemImportFromShareableHandle(&handle, NULL, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000, 40 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
}

/* Since CUDA 13.0, the host has a pool that the program need not make (cuMemGetDefaultMemPool). */
static void default_host_pool(void) {
    static uint64_t pool[8]; /* of which the shim does not know */
    CUdeviceptr pointer;
    fake.pool_location = 2;
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, 400 * MIB, (CUmemoryPool)pool, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0) + api_used(1), 0);
}

static void create_fails(void) {
    CUmemGenericAllocationHandle handle;
    CHECK_IS(api.cuMemCreate(&handle, 40 * MIB, &on_card, 0), CUDA_SUCCESS);
    fake.fail = 999;
    CHECK_IS(api.cuMemMap(0x1000000, 20 * MIB, 0, handle, 0), 999);
    CHECK_IS(api.cuMemRelease(handle), 999);
    CHECK_IS(api_used(0), 40 * MIB);
    fake.fail = 0;
    CHECK_IS(api.cuMemMap(0x1000000, 20 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000 + 20 * MIB, 20 * MIB, 20 * MIB, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(handle), CUDA_SUCCESS);
    fake.fail = 999;
    CHECK_IS(api.cuMemUnmap(0x1000000, 40 * MIB), 999);
    CHECK_IS(api_used(0), 40 * MIB);
    fake.fail = 0;
    CHECK_IS(api.cuMemUnmap(0x1000000, 40 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* From here on the process gets no host memory; returns the previous limit. */
static struct rlimit allow_nothing(void) {
    struct rlimit before, none;
    CHECK(!getrlimit(RLIMIT_AS, &before));
    none = before;
    none.rlim_cur = 0;
    CHECK(!setrlimit(RLIMIT_AS, &none));
    return before;
}

static void create_unknown(bool is_kept) {
    CUmemGenericAllocationHandle handle;
    struct rlimit before = allow_nothing();
    while (malloc(16)) continue;
    fake.frees_nothing = is_kept;
    CUresult result = api.cuMemCreate(&handle, 20 * MIB, &on_card, 0);
    fake.frees_nothing = 0;
    CHECK(!setrlimit(RLIMIT_AS, &before));
    CHECK_IS(result, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(0), is_kept * 20 * MIB);
}

/* Memory that cannot be recorded is refused; if the driver does not release it again, it is charged. */
static void create_unremembered(void) {
    if (getenv("ASAN_OPTIONS")) return; /* its malloc does not fail */
    create_unknown(false);
    create_unknown(true);
}

/* ---- while a call of the driver's does not return ---- */

static void unmap(void) {
    CHECK_IS(api.cuMemUnmap(0x1000000, 20 * MIB), CUDA_SUCCESS);
}

static void create_beside(void) {
    CUmemGenericAllocationHandle other;
    CHECK_IS(api.cuMemCreate(&other, 20 * MIB, &on_card, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(other), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 20 * MIB);
}

static void unmap_waits(void) {
    CUmemGenericAllocationHandle handle;
    CHECK_IS(api.cuMemCreate(&handle, 20 * MIB, &on_card, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000, 20 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(handle), CUDA_SUCCESS);
    while_in(FAKE_cuMemUnmap, unmap, create_beside);
    CHECK_IS(api_used(0), 0);
}

static CUmemGenericAllocationHandle held;
static int held_by;

static void create_held(void) {
    CHECK_IS(api.cuMemCreate(&held, 20 * MIB, &on_card, 0), CUDA_SUCCESS);
}

static void map_held(void) {
    CHECK_IS(api.cuMemMap(0x1000000, 20 * MIB, 0, held, 0), CUDA_SUCCESS);
}

static void export_held(void) {
    CHECK_IS(api.cuMemExportToShareableHandle(&held_by, held, 1, 0), CUDA_SUCCESS);
}

static void release_held(void) {
    CHECK_IS(api.cuMemRelease(held), CUDA_SUCCESS);
}

static void release_beside(void) {
    release_held();
    CHECK_IS(api_used(0), 20 * MIB);
}

/* Memory is charged until it is released; its handle may be reused before that. */
static void unmap_and_create_beside(void) {
    unmap();
    CHECK_IS(api_used(0), 20 * MIB);
    fake.next_large = held;
    create_held();
    CHECK_IS(fake.next_large, held + 20 * MIB);
    CHECK_IS(api_used(0), 40 * MIB);
}

static void map_waits(void) {
    create_held();
    while_in(FAKE_cuMemMap, map_held, release_beside);
    CHECK_IS(api_used(0), 20 * MIB);
    unmap();
    CHECK_IS(api_used(0), 0);
}

static void release_waits(void) {
    create_held();
    map_held();
    while_in(FAKE_cuMemRelease, release_held, unmap_and_create_beside);
    CHECK_IS(api_used(0), 20 * MIB);
    release_held();
    CHECK_IS(api_used(0), 0);
}

static void export_waits(void) {
    create_held();
    while_in(FAKE_cuMemExportToShareableHandle, export_held, release_beside);
    CHECK_IS(api_used(0), 20 * MIB);
    close(held_by);
    CHECK_IS(api.cuMemCreate(&held, 64 * MIB, &on_card, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 64 * MIB);
}

/* The keeper's handle is reused before its end is known: what it held is given back nevertheless. */
static void bind_to_another(void) {
    fake.next = held;
    CHECK_IS(api.cuMulticastCreate(&held, NULL), CUDA_SUCCESS);
    CHECK_IS(fake.next, held + 512);
    CHECK_IS(api_used(0), 20 * MIB);
}

static void multicast_waits(void) {
    CUmemGenericAllocationHandle memory;
    CHECK_IS(api.cuMemCreate(&memory, 20 * MIB, &on_card, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMulticastCreate(&held, NULL), CUDA_SUCCESS);
    CHECK_IS(api.cuMulticastBindMem(held, 0, memory, 0, 20 * MIB, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(memory), CUDA_SUCCESS);
    while_in(FAKE_cuMemRelease, release_held, bind_to_another);
    CHECK_IS(api_used(0), 0);
}

static void create_elsewhere(void) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CHECK_IS(api.cuMemCreate(&handle, 20 * MIB, &prop, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB);
    prop.location.id = 2;
    CHECK_IS(api.cuMemCreate(&handle, 512, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    prop.location.type = 3; /* the host's */
    CHECK_IS(api.cuMemCreate(&handle, 400 * MIB, &prop, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_IS(api_used(0) + api_used(1), 20 * MIB);
}

/* A multicast object holds memory that is bound to it, even when that is released and unmapped. */
static void multicast(void) {
    CUmemGenericAllocationHandle memory, object;
    CUdeviceptr pointer;
    for (int way = 0; way < 4; way++) {
        CUdeviceptr at = 1 << 30;
        CHECK_IS(api.cuMulticastCreate(&object, NULL), CUDA_SUCCESS);
        CHECK_IS(api.cuMemCreate(&memory, 40 * MIB, &on_card, 0), CUDA_SUCCESS);
        CHECK_IS(api.cuMemMap(at, 40 * MIB, 0, memory, 0), CUDA_SUCCESS);
        CUresult result = way == 0   ? api.cuMulticastBindMem(object, 0, memory, 0, 40 * MIB, 0)
                          : way == 1 ? api.cuMulticastBindMem_v2(object, 0, 0, memory, 0, MIB, 0)
                          : way == 2 ? api.cuMulticastBindAddr(object, 0, at, 40 * MIB, 0)
                                     : api.cuMulticastBindAddr_v2(object, 0, 0, at, 40 * MIB, 0);
        CHECK_IS(result, CUDA_SUCCESS);
        CHECK_IS(api.cuMemUnmap(at, 40 * MIB), CUDA_SUCCESS);
        CHECK_IS(api.cuMemRelease(memory), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 40 * MIB);
        CHECK_IS(api.cuMemAlloc_v2(&pointer, 30 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_IS(api.cuMemRelease(object), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 0);
    }
}

/* The reference by which the address's memory was found may remain, and with it the memory. */
static void multicast_kept(void) {
    CUmemGenericAllocationHandle memory, object;
    CHECK_IS(api.cuMulticastCreate(&object, NULL), CUDA_SUCCESS);
    CHECK_IS(api.cuMemCreate(&memory, 40 * MIB, &on_card, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000, 40 * MIB, 0, memory, 0), CUDA_SUCCESS);
    fake.frees_nothing = 1;
    CHECK_IS(api.cuMulticastBindAddr(object, 0, 0x1000000, 40 * MIB, 0), CUDA_SUCCESS);
    fake.frees_nothing = 0;
    CHECK_IS(api.cuMemUnmap(0x1000000, 40 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(object), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuMemRelease(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* A sparse array holds memory that is mapped into it. */
static void sparse_array(void) {
    CUmemGenericAllocationHandle memory;
    CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 4, 0x20, 1, CUDA_ARRAY3D_SPARSE};
    CUarray array;
    CUmipmappedArray mipmap;
    CHECK_IS(api.cuArray3DCreate_v2(&array, &shape), CUDA_SUCCESS);
    CHECK_IS(api.cuMipmappedArrayCreate(&mipmap, &shape, 2), CUDA_SUCCESS);
    CHECK_IS(api.cuMemCreate(&memory, 40 * MIB, &on_card, 0), CUDA_SUCCESS);
    CUarrayMapInfo list[] = {
        {.resource = array, .operation = CU_MEM_OPERATION_TYPE_MAP, .handle = memory},
        {.resource = array, .operation = CU_MEM_OPERATION_TYPE_MAP, .handle = memory},
        {.resource_type = 1, .resource = mipmap, .operation = CU_MEM_OPERATION_TYPE_MAP,
         .handle = memory}};
    CHECK_IS(api.cuMemMapArrayAsync(list, 2, NULL), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMapArrayAsync_ptsz(list + 2, 1, NULL), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(memory), CUDA_SUCCESS);
    fake.fail = 999;
    CHECK_IS(api.cuArrayDestroy(array), 999);
    fake.fail = 0;
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuArrayDestroy(array), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuMipmappedArrayDestroy(mipmap), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* The driver destroys arrays with their context, and with them the memory that they hold. */
static void sparse_array_ends_with_its_context(void) {
    CUmemAllocationProp card_1 = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 4, 0x20, 1, CUDA_ARRAY3D_SPARSE};
    CUmemGenericAllocationHandle memory;
    CUcontext made;
    CUarray array;
    CUmipmappedArray mipmap;
    CHECK_IS(api.cuCtxCreate_v2(&made, 0, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuArray3DCreate_v2(&array, &shape), CUDA_SUCCESS);
    CHECK_IS(api.cuMipmappedArrayCreate(&mipmap, &shape, 2), CUDA_SUCCESS);
    CHECK_IS(api.cuMemCreate(&memory, 20 * MIB, &card_1, 0), CUDA_SUCCESS);
    CUarrayMapInfo list[] = {
        {.resource = array, .operation = CU_MEM_OPERATION_TYPE_MAP, .handle = memory},
        {.resource_type = 1, .resource = mipmap, .operation = CU_MEM_OPERATION_TYPE_MAP,
         .handle = memory}};
    CHECK_IS(api.cuMemMapArrayAsync(list, 2, NULL), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB);
    CHECK_IS(api.cuCtxDestroy_v2(made), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
}

/* The descriptor by which memory was exported holds it; another file with that number does not. */
static void export_handle(void) {
    CUmemGenericAllocationHandle memory;
    CUdeviceptr pointer;
    int fd, other;
    CHECK_IS(api.cuMemCreate(&memory, 40 * MIB, &on_card, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemExportToShareableHandle(&fd, memory, 1, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemExportToShareableHandle(&other, memory, 1, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemRelease(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    close(other);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    close(fd);
    CHECK_IS(open("/dev/null", O_RDWR), fd);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 40 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
}


/* The driver's own result for an allocation of 0 bytes is returned at once. */
static void nothing_async(void) {
    CUdeviceptr pointer;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 0, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK_IS(fake.calls[FAKE_cuMemAllocAsync], 1);
    CHECK_IS(api_used(0), 0);
}

static void import_handle(void) {
    CUmemGenericAllocationHandle handle;
    CHECK_IS(api.cuMemImportFromShareableHandle(&handle, NULL, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000, 65 * MIB, 0, handle, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemMap(0x1000000, 40 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_IS(api.cuMemUnmap(0x1000000, 40 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* What a pool keeps is given back for memory that is imported. */
static void import_makes_room(void) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer;
    fake.pool_keeps = 1;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuMemImportFromShareableHandle(&handle, NULL, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000, 60 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 60 * MIB);
    CHECK_IS(api.cuMemMap(0x8000000, 30 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 60 * MIB);
}

/* ---- contexts: on card 1, since card 0 has one that cost nothing ---- */

static CUresult make_v1(CUcontext *context) {
    return api.cuCtxCreate(context, 0, 1);
}
static CUresult make_v2(CUcontext *context) {
    return api.cuCtxCreate_v2(context, 0, 1);
}
static CUresult make_v3(CUcontext *context) {
    return api.cuCtxCreate_v3(context, NULL, 0, 0, 1);
}
static CUresult make_v4(CUcontext *context) {
    return api.cuCtxCreate_v4(context, NULL, 0, 1);
}

/* The first one's cost according to NVML is charged for the others before they are made. */
static void context(void) {
    static CUresult (*const make[])(CUcontext *) = {make_v1, make_v2, make_v3, make_v4};
    CUresult (*const end[])(CUcontext) = {api.cuCtxDestroy, api.cuCtxDestroy_v2, api.cuCtxDetach,
                                          api.cuCtxDestroy_v2};
    CUmemAllocationProp card_1 = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemGenericAllocationHandle handle;
    CUcontext made;
    CUdeviceptr pointer;
    fake.context_cost = 10 * MIB;
    for (size_t i = 0; i < COUNT(make); i++) {
        CHECK_IS(make[i](&made), CUDA_SUCCESS);
        CHECK_IS(api_used(1), 10 * MIB);
        CHECK_IS(api.cuMemAlloc_v2(&pointer, 20 * MIB), CUDA_SUCCESS);
        CHECK_IS(api_used(1), 30 * MIB);
        CHECK_IS(end[i](made), CUDA_SUCCESS); /* with all that was allocated in it */
        CHECK_IS(api_used(1), 0);
    }
    CHECK_IS(api.cuMemCreate(&handle, 24 * MIB, &card_1, 0), CUDA_SUCCESS);
    CHECK_IS(make_v2(&made), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuCtxCreate_v2], 1); /* the driver was not asked again */
}

/* The first context of all: its cost is known only once it exists. */
static void first_context_too_large(void) {
    CUcontext made;
    api.cuDevicePrimaryCtxReset_v2(0);
    fake.context_cost = 40 * MIB;
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&made, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(1), 0);
    CHECK_IS(fake.contexts, 0);
}

/* A context that the driver does not end again is there, so it counts: once, until it ends. */
static void context_kept(void) {
    CUcontext made;
    CUdeviceptr pointer;
    api.cuDevicePrimaryCtxReset_v2(0);
    fake.context_cost = 40 * MIB;
    fake.frees_nothing = 1;
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&made, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(1), 40 * MIB);
    CHECK_IS(cuCtxSetCurrent(made), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 512), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(1), 40 * MIB);
    fake.frees_nothing = 0;
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(1), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
}

static void primary(void) {
    CUcontext one, same;
    CUdeviceptr pointer;
    fake.context_cost = 10 * MIB;
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&one, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&same, 1), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 10 * MIB);
    CHECK_IS(cuCtxSetCurrent(one), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 20 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 30 * MIB);
    CHECK_IS(api.cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&one, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 20 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(1), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&one, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 20 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuDevicePrimaryCtxReset(1), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
}

/* CUDA's runtime may make one through its private tables; it is counted when it is used. */
static void unseen_context(void) {
    CUcontext made;
    CUdeviceptr pointer;
    fake.context_cost = 10 * MIB;
    CHECK_IS(api.cuCtxCreate_v2(&made, 0, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxDestroy_v2(made), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
    fake_use(1);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 512), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 12 * MIB);
}

static void context_limits(void) {
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 48 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB); /* 8 MiB are usual */
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 128 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 44 * MIB); /* 1 KiB more for each of 4096 threads */
    fake.fail = 999;
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MIB), 999);
    CHECK_IS(api_used(0), 44 * MIB);
    fake.fail = 0;
    CHECK_IS(api.cuCtxSetLimit(5, 64 * MIB), CUDA_SUCCESS); /* no memory in this one */
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* No memory for what measures its work: that is refused, not unlimited. */
static void unmeasured_context(void) {
    struct rlimit before = allow_nothing();
    CUresult result = api.cuLaunchKernel((CUfunction)0x1000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    CHECK(!setrlimit(RLIMIT_AS, &before));
    CHECK_IS(result, CUDA_ERROR_OUT_OF_MEMORY);
    result = api.cuLaunchKernel((CUfunction)0x1000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    CHECK_IS(result, CUDA_SUCCESS);
}

/* A view of a part of the primary context, which it keeps; memory is that one's. */
static void green_context(void) {
    CUgreenCtx green;
    CUcontext view, primary;
    CUdeviceptr pointer;
    fake.context_cost = 10 * MIB;
    CHECK_IS(api.cuGreenCtxCreate(&green, NULL, 1, 1), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 10 * MIB);
    CHECK_IS(api.cuCtxFromGreenCtx(&view, green), CUDA_SUCCESS);
    CHECK_IS(cuCtxSetCurrent(view), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 512), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 12 * MIB);
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&primary, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuGreenCtxDestroy(green), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 12 * MIB);
    CHECK_IS(api.cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
}

/* The last release ends the primary context, and makes room for others. */
static void green_contexts(void) {
    CUgreenCtx green;
    CUcontext context;
    fake.context_cost = 10 * MIB;
    for (int i = 0; i < CONTEXTS_MAX; i++) {
        CHECK_IS(api.cuGreenCtxCreate(&green, NULL, 1, 1), CUDA_SUCCESS);
        CHECK_IS(api.cuCtxFromGreenCtx(&context, green), CUDA_SUCCESS);
        CHECK_IS(api_used(1), 10 * MIB);
        CHECK_IS(api.cuGreenCtxDestroy(green), CUDA_SUCCESS);
        CHECK_IS(api_used(1), 0);
    }
    CHECK_IS(api.cuCtxCreate_v2(&context, 0, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
}

/* A context for which the table has no room is not counted, rather than again for each call. */
static void contexts_beyond_the_table(void) {
    CUgreenCtx green;
    CUcontext context = NULL;
    CUdeviceptr pointer;
    fake.context_cost = 10 * MIB;
    for (int i = 0; i < CONTEXTS_MAX + 1; i++) {
        CHECK_IS(api.cuGreenCtxCreate(&green, NULL, 1, 1), CUDA_SUCCESS);
        CHECK_IS(api.cuCtxFromGreenCtx(&context, green), CUDA_SUCCESS);
    }
    CHECK_IS(api_used(1), 10 * MIB);
    CHECK_IS(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) {
        CHECK_IS(api.cuMemAlloc_v2(&pointer, MIB), CUDA_SUCCESS);
        CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
        CHECK_IS(api_used(1), 10 * MIB);
    }
}

/* ---- arrays ---- */

#define FLOAT 0x20

static void array_limits(CUresult result, CUarray array) {
    CUdeviceptr pointer;
    CHECK_IS(result, CUDA_SUCCESS);
    CHECK_IS(api_used(0), 16 * MIB); /* 2048 * 2048 floats */
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 50 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuArrayDestroy(array), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

static void array_v1(void) {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR_v1 shape = {2048, 2048, FLOAT, 1};
    CUresult result = api.cuArrayCreate(&array, &shape);
    array_limits(result, array);
}

static void array(void) {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {2048, 2048, FLOAT, 1};
    CUresult result = api.cuArrayCreate_v2(&array, &shape);
    array_limits(result, array);
    shape.height = 16384;
    CHECK_IS(api.cuArrayCreate_v2(&array, &shape), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuArrayCreate_v2], 1);
    shape.width = shape.height = SIZE_MAX / 2;
    CHECK_IS(api.cuArrayCreate_v2(&array, &shape), CUDA_ERROR_OUT_OF_MEMORY);
    shape.width = 1;
    for (shape.height = SIZE_MAX; shape.height > SIZE_MAX - 300; shape.height--)
        CHECK_IS(api.cuArrayCreate_v2(&array, &shape), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuArrayCreate_v2], 1);
}

static void array_3d_v1(void) {
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR_v1 shape = {1024, 1024, 4, FLOAT, 1, 0};
    CUresult result = api.cuArray3DCreate(&array, &shape);
    array_limits(result, array);
}

static void array_3d(void) {
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 4, FLOAT, 1, 0};
    CUresult result = api.cuArray3DCreate_v2(&array, &shape);
    array_limits(result, array);
    shape.depth = 400;
    shape.flags = CUDA_ARRAY3D_SPARSE; /* mapped by the program, out of memory that is counted */
    CHECK_IS(api.cuArray3DCreate_v2(&array, &shape), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

static void mipmap(void) {
    CUmipmappedArray array;
    CUDA_ARRAY3D_DESCRIPTOR shape = {2048, 2048, 0, FLOAT, 1, 0};
    CHECK_IS(api.cuMipmappedArrayCreate(&array, &shape, 1), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 16 * MIB);
    CHECK_IS(api.cuMipmappedArrayDestroy(array), CUDA_SUCCESS);
    CHECK_IS(api.cuMipmappedArrayCreate(&array, &shape, 3), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 22 * MIB); /* 16 + 4 + 1, in pages of 2 */
    CHECK_IS(api.cuMipmappedArrayDestroy(array), CUDA_SUCCESS);
    CUDA_ARRAY3D_DESCRIPTOR cube = {1024, 1024, 6, FLOAT, 1, CUDA_ARRAY3D_CUBEMAP};
    CHECK_IS(api.cuMipmappedArrayCreate(&array, &cube, 2), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 30 * MIB); /* each level has six faces */
    CHECK_IS(api.cuMipmappedArrayDestroy(array), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* ---- code ---- */

static CUresult load_file(CUmodule *module) {
    return api.cuModuleLoad(module, "/dev/null");
}
static CUresult load_data(CUmodule *module) {
    return api.cuModuleLoadData(module, ".version 6.4");
}
static CUresult load_data_ex(CUmodule *module) {
    return api.cuModuleLoadDataEx(module, "", 0, NULL, NULL);
}
static CUresult load_fat(CUmodule *module) {
    static const struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t bytes;
    } fat = {0xba55ed50, 1, 16, 100};
    static const struct {
        uint32_t magic, version;
        const void *data;
    } wrapper = {0x466243b1, 1, &fat};
    CHECK_IS(api.cuModuleLoadFatBinary(module, &fat), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleUnload(*module), CUDA_SUCCESS);
    return api.cuModuleLoadFatBinary(module, &wrapper);
}

/* The decrease of free memory after code was loaded, but at most what such an image may need. */
static void modules(void) {
    static CUresult (*const ways[])(CUmodule *) = {load_file, load_data, load_data_ex, load_fat};
    CUmodule module, other;
    for (size_t i = 0; i < COUNT(ways); i++) {
        fake.module_bytes = 4 * MIB;
        CHECK_IS(ways[i](&module), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 4 * MIB);
        fake.fail = 999;
        CHECK_IS(api.cuModuleUnload(module), 999);
        CHECK_IS(api.cuModuleLoadData(&other, ""), 999);
        fake.fail = 0;
        CHECK_IS(api_used(0), 4 * MIB);
        CHECK_IS(api.cuModuleUnload(module), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 0);
        fake.module_bytes = 0; /* loaded when it is needed */
        CHECK_IS(api.cuModuleLoadData(&module, ".version"), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 0);
    }
    fake.module_bytes = 1000 * MIB; /* a neighbour's, most likely */
    CHECK_IS(api.cuModuleLoadData(&module, ".version"), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 6 * MIB);
    CHECK_IS(api.cuModuleUnload(module), CUDA_SUCCESS);
}

static void module_limits(void) {
    CUdeviceptr pointer;
    CUmodule module;
    fake.module_bytes = 4 * MIB;
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 62 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleLoadData(&module, ""), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuModuleUnload], 1); /* it was more than expected */
    CHECK_IS(api.cuModuleLoadData(&module, ""), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuModuleLoadData], 1); /* now it is known */
    CHECK_IS(api_used(0), 62 * MIB);
    CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 60 * MIB), CUDA_SUCCESS);
    fake.module_bytes = 6 * MIB; /* more than expected again */
    fake.frees_nothing = 1;
    CHECK_IS(api.cuModuleLoadData(&module, ".version"), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 66 * MIB); /* it is there, so it counts */
    fake.frees_nothing = 0;
    CHECK_IS(api.cuModuleUnload(module), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 60 * MIB);
}

static void libraries(void) {
    CUlibrary library;
    CUmodule module;
    CUkernel kernel;
    CUdeviceptr pointer;
    fake.module_bytes = 4 * MIB;
    CHECK_IS(api.cuLibraryLoadData(&library, "", NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuLibraryGetModule(&module, library), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 8 * MIB);
    fake.fail = 999;
    CHECK_IS(api.cuLibraryUnload(library), 999);
    fake.fail = 0;
    CHECK_IS(api_used(0), 8 * MIB);
    CHECK_IS(api.cuLibraryUnload(library), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
    CHECK_IS(api.cuLibraryGetKernel(&kernel, library, "one"), CUDA_SUCCESS);
    CHECK_IS((uintptr_t)kernel, (uintptr_t)library); /* as the driver says */
    CHECK_IS(api.cuLibraryLoadFromFile(&library, "", NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 56 * MIB), CUDA_SUCCESS);
    fake.module_bytes = 10 * MIB;
    CHECK_IS(api.cuLibraryGetModule(&module, library), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 70 * MIB); /* it is there, so it counts; and cannot be undone */
    CHECK_IS(api.cuLibraryGetModule(&module, library), CUDA_ERROR_OUT_OF_MEMORY);
}

/* ---- pools ---- */

static void wait_ctx(void) {
    api.cuCtxSynchronize();
}
static void wait_ctx_v2(void) {
    api.cuCtxSynchronize_v2(NULL);
}
static void wait_stream(void) {
    api.cuStreamSynchronize(stream);
}
static void wait_stream_ptsz(void) {
    api.cuStreamSynchronize_ptsz(NULL);
}
static void wait_event(void) {
    api.cuEventSynchronize(NULL);
}

/* Freed memory belongs to the pool until the driver gives it back at a wait. */
static void pool_waits(void) {
    static void (*const waits[])(void) = {wait_ctx, wait_ctx_v2, wait_stream, wait_stream_ptsz,
                                          wait_event};
    CUdeviceptr pointer, other;
    for (size_t i = 0; i < COUNT(waits); i++) {
        CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, stream), CUDA_SUCCESS);
        CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 40 * MIB);
        CHECK_IS(api.cuMemAlloc_v2(&other, 40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_IS(api.cuMemAllocAsync(&pointer, 30 * MIB, stream), CUDA_ERROR_OUT_OF_MEMORY);
        waits[i]();
        CHECK_IS(api_used(0), 0);
    }
}

/* In a pool that keeps memory, an allocation reuses memory that was freed in its stream. */
static void pool_reuse(void) {
    CUdeviceptr pointer;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, stream), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    fake.pool_threshold = UINT64_MAX;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
}

/* Memory that a pool keeps is given back for an allocation that would otherwise be refused. */
static void pool_gives_way(void) {
    CUdeviceptr pointer;
    fake.pool_keeps = 1;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 60 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 60 * MIB);
}

/* Memory from a pool is gone with the context, even if the program has not freed it. */
static void pool_is_empty_after_its_context(void) {
    CUdeviceptr pointer;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, stream), CUDA_SUCCESS);
    fake.pool_live = fake.pool_reserved = 0; /* as drivers do, just before they answer */
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* So is memory that was freed in a stream which never reached the free: its event is not queried again. */
static void deferred_free_ends_with_its_context(void) {
    CUdeviceptr pointer;
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 40 * MIB), CUDA_SUCCESS);
    fake.busy = 1;
    CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
    CHECK_IS(fake.stale, 0);
}

/* A pool grows in steps of its own. */
static void pool_grain(void) {
    CUdeviceptr pointer, other;
    fake.pool_grain = 32 * MIB;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 2 * MIB, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 32 * MIB);
    CHECK_IS(api.cuMemAllocAsync(&other, 20 * MIB, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 32 * MIB);
    CHECK_IS(api.cuMemFreeAsync(other, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuMemPoolTrimTo(NULL, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 32 * MIB);
    CHECK_IS(api.cuMemAlloc_v2(&other, 10 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAllocAsync(&pointer, 31 * MIB, stream), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuMemAllocAsync], 2); /* by how much the pool would grow is known */
}

static void custom_pool(void) {
    CUmemoryPool pool, host;
    CUdeviceptr pointer, other;
    CUmemPoolProps props = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CHECK_IS(api.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, 20 * MIB, pool, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB); /* the pool's card, not the stream's */
    CHECK_IS(api.cuMemPoolDestroy(pool), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB); /* its allocations still exist */
    CHECK_IS(api.cuMemAllocFromPoolAsync(&other, 512, pool, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK_IS(api.cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB); /* until the stream has come so far */
    CHECK_IS(fake.calls[FAKE_cuMemPoolDestroy], 0);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_IS(fake.calls[FAKE_cuMemPoolDestroy], 1);
    CHECK_IS(api_used(1), 0);
    CHECK_IS(api.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    CHECK_IS(api.cuMemPoolDestroy(pool), CUDA_SUCCESS); /* an empty one is destroyed at once */
    CHECK_IS(fake.calls[FAKE_cuMemPoolDestroy], 2);
    props.location.type = 2;
    props.type = CU_MEM_ALLOCATION_TYPE_MANAGED; /* comes to the card when it is used there */
    CHECK_IS(api.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, 20 * MIB, pool, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 20 * MIB);
    CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    props.type = 1;
    CHECK_IS(api.cuMemPoolCreate(&host, &props), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAllocFromPoolAsync(&pointer, 400 * MIB, host, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0) + api_used(1), 0);
}

static void import_pointer(void) {
    CUdeviceptr pointer, other;
    CHECK_IS(api.cuMemPoolImportPointer(&pointer, NULL, NULL), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuMemPoolImportPointer(&other, NULL, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS); /* it is there until the stream has come so far */
    CHECK_IS(api_used(0), 0);
}

/* ---- graphs ---- */

static CUgraph const graph = (CUgraph)&fake;

static CUresult instantiate(CUgraphExec *exec) {
    return api.cuGraphInstantiate(exec, graph, NULL, NULL, 0);
}
static CUresult instantiate_v2(CUgraphExec *exec) {
    return api.cuGraphInstantiate_v2(exec, graph, NULL, NULL, 0);
}
static CUresult instantiate_flags(CUgraphExec *exec) {
    return api.cuGraphInstantiateWithFlags(exec, graph, 0);
}
static CUresult instantiate_params(CUgraphExec *exec) {
    return api.cuGraphInstantiateWithParams(exec, graph, NULL);
}
static CUresult instantiate_ptsz(CUgraphExec *exec) {
    return api.cuGraphInstantiateWithParams_ptsz(exec, graph, NULL);
}

static void graphs(void) {
    static CUresult (*const ways[])(CUgraphExec *) = {
        instantiate, instantiate_v2, instantiate_flags, instantiate_params, instantiate_ptsz};
    CUgraphExec exec, other;
    fake.graph_sizes[0] = 20 * MIB, fake.graph_sizes[2] = 20 * MIB;
    for (size_t i = 0; i < COUNT(ways); i++) {
        CHECK_IS(ways[i](&exec), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 40 * MIB);
        CHECK_IS(ways[i](&other), CUDA_ERROR_OUT_OF_MEMORY);
        fake.graph_reserved = 40 * MIB; /* it was launched */
        CHECK_IS(api.cuGraphExecDestroy(exec), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 0);
        fake.fail = 999;
        CHECK_IS(ways[i](&exec), 999);
        CHECK_IS(api_used(0), 0);
        fake.fail = 0;
    }
    CHECK_IS(fake.calls[FAKE_cuGraphInstantiateWithFlags], 2);
}

/* A graph that exists is charged nevertheless. */
static void graph_trim(void) {
    CUgraphExec exec;
    fake.graph_sizes[0] = 20 * MIB;
    CHECK_IS(instantiate(&exec), CUDA_SUCCESS);
    fake.graph_reserved = 20 * MIB;
    CHECK_IS(api.cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    CHECK_IS(fake.graph_reserved, 0);
    CHECK_IS(api_used(0), 20 * MIB);
}

/* Recorded into a graph, an allocation takes nothing yet; nor does a free give. */
static void capture(void) {
    CUdeviceptr pointer, recorded;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 20 * MIB, stream), CUDA_SUCCESS);
    fake.capturing = 1;
    CHECK_IS(api.cuMemAllocAsync(&recorded, 400 * MIB, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFreeAsync(recorded, stream), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 20 * MIB);
}

/* ---- imports ---- */

static void external(void) {
    CUexternalMemory memory, other;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC shape = {.type = 1, .bytes = 40 * MIB};
    CHECK_IS(api.cuImportExternalMemory(&memory, &shape), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuImportExternalMemory(&other, &shape), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuDestroyExternalMemory(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* ---- mappings of imported memory ---- */

static CUexternalMemory import(uint64_t bytes) {
    CUexternalMemory memory;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC shape = {.type = 1, .bytes = bytes};
    CHECK_IS(api.cuImportExternalMemory(&memory, &shape), CUDA_SUCCESS);
    return memory;
}

typedef CUresult map_function(uint64_t *made, CUexternalMemory memory);
typedef CUresult unmap_function(uint64_t made);

static CUresult map_buffer(uint64_t *made, CUexternalMemory memory) {
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.bytes = 40 * MIB};
    return api.cuExternalMemoryGetMappedBuffer(made, memory, &whole);
}

static CUresult free_buffer_v1(uint64_t made) {
    return api.cuMemFree((CUdeviceptr_v1)made);
}

static CUresult map_array(uint64_t *made, CUexternalMemory memory) {
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC whole = {
        .array = {1024, 1024, 0, FLOAT, 1, 0}, .levels = 2};
    return api.cuExternalMemoryGetMappedMipmappedArray((CUmipmappedArray *)made, memory, &whole);
}

static CUresult destroy_array(uint64_t made) {
    return api.cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)made);
}

static void handle_goes_first(map_function *map, unmap_function *drop) {
    uint64_t one, other, none;
    CUexternalMemory memory = import(40 * MIB);
    CHECK_IS(map(&one, memory), CUDA_SUCCESS);
    CHECK_IS(map(&other, memory), CUDA_SUCCESS);
    CHECK_IS(api.cuDestroyExternalMemory(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(map(&none, memory), CUDA_ERROR_INVALID_HANDLE);
    CHECK_IS(drop(one), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(drop(other), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

static void handle_goes_last(map_function *map, unmap_function *drop) {
    uint64_t made;
    CUexternalMemory memory = import(40 * MIB);
    CHECK_IS(map(&made, memory), CUDA_SUCCESS);
    CHECK_IS(drop(made), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuDestroyExternalMemory(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* A call that the driver refuses changes nothing. */
static void mapping_refused(map_function *map, unmap_function *drop) {
    uint64_t made, none;
    CUexternalMemory memory = import(40 * MIB);
    CHECK_IS(map(&made, memory), CUDA_SUCCESS);
    fake.fail = 999;
    CHECK_IS(map(&none, memory), 999);
    CHECK_IS(drop(made), 999);
    CHECK_IS(api.cuDestroyExternalMemory(memory), 999);
    fake.fail = 0;
    CHECK_IS(api.cuDestroyExternalMemory(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(drop(made), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

static void mapped(map_function *map, unmap_function *drop) {
    handle_goes_first(map, drop);
    handle_goes_last(map, drop);
    mapping_refused(map, drop);
}

static void mapped_buffer(void) {
    mapped(map_buffer, api.cuMemFree_v2);
    mapped(map_buffer, free_buffer_v1);
}

static void mapped_array(void) {
    mapped(map_array, destroy_array);
}

/* Imports and mappings in a context end with it. */
static void import_in_context(void) {
    CUcontext made;
    CUdeviceptr pointer;
    CHECK_IS(make_v2(&made), CUDA_SUCCESS);
    CUexternalMemory memory = import(20 * MIB);
    CHECK_IS(map_buffer(&pointer, memory), CUDA_SUCCESS);
    CHECK_IS(api.cuDestroyExternalMemory(memory), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB);
    CHECK_IS(api.cuCtxDestroy_v2(made), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
    CHECK_IS(make_v2(&made), CUDA_SUCCESS);
    memory = import(20 * MIB);
    fake_use(0);
    CHECK_IS(map_buffer(&pointer, memory), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxDestroy_v2(made), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 20 * MIB);
    CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_IS(api_used(1), 0);
}

static CUexternalMemory imported;
static CUdeviceptr buffer;

static void destroy_imported(void) {
    CHECK_IS(api.cuDestroyExternalMemory(imported), CUDA_SUCCESS);
}

static void map_imported(void) {
    fake_use(0);
    CHECK_IS(map_buffer(&buffer, imported), CUDA_SUCCESS);
}

static void free_buffer(void) {
    CHECK_IS(api.cuMemFree_v2(buffer), CUDA_SUCCESS);
}

static void destroy_beside(void) {
    destroy_imported();
    CHECK_IS(api_used(0), 40 * MIB);
}

/* Its handle is reused before its end is known. */
static void import_again(void) {
    CUdeviceptr none;
    CHECK_IS(map_buffer(&none, imported), CUDA_ERROR_INVALID_HANDLE);
    free_buffer();
    CHECK_IS(api_used(0), 40 * MIB);
    fake.next = (uintptr_t)imported;
    CHECK(import(20 * MIB) == imported);
    map_imported();
    CHECK_IS(api_used(0), 60 * MIB);
}

/* The address of a mapping is reused before its end is known. */
static void map_again(void) {
    destroy_imported();
    imported = import(20 * MIB);
    fake.next = buffer;
    map_imported();
    CHECK_IS(fake.next, buffer + 512);
    CHECK_IS(api_used(0), 60 * MIB);
}

static void imports_wait(void) {
    imported = import(40 * MIB);
    while_in(FAKE_cuExternalMemoryGetMappedBuffer, map_imported, destroy_beside);
    CHECK_IS(api_used(0), 40 * MIB);
    free_buffer();
    CHECK_IS(api_used(0), 0);
    imported = import(40 * MIB);
    map_imported();
    while_in(FAKE_cuDestroyExternalMemory, destroy_imported, import_again);
    CHECK_IS(api_used(0), 20 * MIB);
    destroy_imported();
    free_buffer();
    CHECK_IS(api_used(0), 0);
    imported = import(40 * MIB);
    map_imported();
    while_in(FAKE_cuMemFree_v2, free_buffer, map_again);
    CHECK_IS(api_used(0), 20 * MIB);
    destroy_imported();
    free_buffer();
    CHECK_IS(api_used(0), 0);
}

static CUresult import_without_memory(bool heap) {
    CUexternalMemory memory;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC shape = {.type = 1, .bytes = 20 * MIB};
    struct rlimit before = allow_nothing();
    while (!heap && malloc(16)) continue;
    CUresult result = api.cuImportExternalMemory(&memory, &shape);
    CHECK(!setrlimit(RLIMIT_AS, &before));
    return result;
}

/* Imports that cannot be recorded are not even requested from the driver. */
static void import_unremembered(void) {
    if (getenv("ASAN_OPTIONS")) return; /* its malloc does not fail */
    CHECK_IS(import_without_memory(true), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuDestroyExternalMemory], 1);
    CHECK_IS(api_used(0), 0);
    fake.frees_nothing = 1;
    CHECK_IS(import_without_memory(true), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(0), 20 * MIB);
    CHECK_IS(import_without_memory(false), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuImportExternalMemory], 2);
    CHECK_IS(api_used(0), 20 * MIB);
}

static void ipc_with(CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned)) {
    CUipcMemHandle handle = {{0}};
    CUdeviceptr pointer, other;
    CHECK_IS(open(&pointer, handle, 1), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(open(&other, handle, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuIpcCloseMemHandle], 1); /* it was opened, and closed again */
    fake.frees_nothing = 1;
    CHECK_IS(open(&other, handle, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(0), 80 * MIB); /* it was not */
    fake.frees_nothing = 0;
    CHECK_IS(api.cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
}

static void ipc_v1(void) {
    ipc_with(api.cuIpcOpenMemHandle);
}

static void ipc(void) {
    ipc_with(api.cuIpcOpenMemHandle_v2);
}

/* Memory of another card, as of the next part of a model, is charged to that card, whichever is current. */
static void ipc_of_another_card(void) {
    CUipcMemHandle handle = {{0}};
    CUdeviceptr pointer;
    fake_use(1);
    CHECK_IS(api.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB); /* more than card 1 has left */
    CHECK_IS(api_used(1), 0);
    CHECK_IS(api.cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
    fake.memory_device = 3; /* a device that the limits do not name */
    CHECK_IS(api.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_ERROR_OUT_OF_MEMORY);
    fake_use(0);
    CHECK_IS(api.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
    fake.memory_device = -1;
    CHECK_IS(api.cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
    CHECK_IS(api.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
}

/* A handle that is opened again gives the same memory, until it was closed as often. */
static void ipc_again(void) {
    CUipcMemHandle handle = {{0}};
    CUdeviceptr pointer, again;
    fake.one_handle = 1;
    CHECK_IS(api.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) CHECK_IS(api.cuIpcOpenMemHandle_v2(&again, handle, 1), CUDA_SUCCESS);
    CHECK_IS(again, pointer);
    CHECK_IS(api_used(0), 40 * MIB);
    for (int i = 0; i < 3; i++) CHECK_IS(api.cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 40 * MIB);
    CHECK_IS(api.cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* The container's own processes, with its own PIDs; not the other one that the driver lists. */
static void nvml_processes(void) {
    CUdeviceptr pointer;
    nvmlDevice_t device;
    nvmlProcessInfo_v1_t old[2];
    nvmlProcessInfo_t infos[2];
    unsigned count = 2;
    CHECK_IS(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    CHECK_IS(api.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos), NVML_SUCCESS);
    CHECK_IS(count, 0);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 24 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL),
             NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_IS(count, 1);
    CHECK_IS(api.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos), NVML_SUCCESS);
    CHECK_IS(infos[0].pid, getpid());
    CHECK_IS(infos[0].used, 24 * MIB);
    CHECK_IS(infos[0].gpu_instance, NVML_NO_INSTANCE);
    count = 2;
    CHECK_IS(api.nvmlDeviceGetComputeRunningProcesses_v2(device, &count, infos), NVML_SUCCESS);
    CHECK_IS(count, 1);
    count = 2;
    CHECK_IS(api.nvmlDeviceGetComputeRunningProcesses(device, &count, old), NVML_SUCCESS);
    CHECK_IS(count, 1);
    CHECK_IS(old[0].used, 24 * MIB);
    count = 2;
    CHECK_IS(api.nvmlDeviceGetGraphicsRunningProcesses(device, &count, old), NVML_SUCCESS);
    CHECK_IS(count, 0);
    count = 2;
    CHECK_IS(api.nvmlDeviceGetGraphicsRunningProcesses_v2(device, &count, infos), NVML_SUCCESS);
    CHECK_IS(count, 0);
    count = 2;
    CHECK_IS(api.nvmlDeviceGetGraphicsRunningProcesses_v3(device, &count, infos), NVML_SUCCESS);
    CHECK_IS(count, 0);
}

/* ---- with a limit above the card, managed memory takes the place of what does not fit ---- */

static void oversubscribed(void) {
    CUdeviceptr pointer;
    CUdeviceptr_v1 narrow;
    size_t row;
    unsigned row_v1;
    fake.card_full = 1;
    CUresult expected = getenv("OVERSUBSCRIBE") ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 4 * MIB), expected);
    CHECK_IS(api.cuMemAllocPitch_v2(&pointer, &row, 1000, 20 * 1024, 4), expected);
    CHECK_IS(api.cuMemAlloc(&narrow, 4 * MIB), expected);
    CHECK_IS(api.cuMemAllocPitch(&narrow, &row_v1, 1000, 20 * 1024, 4), expected);
    CHECK_IS(fake.calls[FAKE_cuMemAllocManaged], expected ? 0 : 4);
    CHECK_IS(api_used(0), expected ? 0 : 48 * MIB);
    CHECK_IS(expected ? 1024 : row_v1, 1024);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 30 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    fake.next_large = (uint64_t)1 << 40; /* of no use to an entry of 32 bits */
    CHECK_IS(api.cuMemAlloc(&narrow, 4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuMemFree_v2], expected ? 0 : 1);
    CHECK_IS(api_used(0), expected ? 0 : 48 * MIB);
    fake.frees_nothing = 1;
    CHECK_IS(api.cuMemAlloc(&narrow, 4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(0), expected ? 0 : 52 * MIB); /* memory that is not freed again is charged */
}

static CUresult take_somehow(int way, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool) {
    switch (way) {
    case 0: return api.cuMemAllocAsync(pointer, bytes, NULL);
    case 1: return api.cuMemAllocAsync_ptsz(pointer, bytes, NULL);
    case 2: return api.cuMemAllocFromPoolAsync(pointer, bytes, pool, NULL);
    default: return api.cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, NULL);
    }
}

static CUmemoryPool pool_with(int handle_types, size_t max_bytes) {
    CUmemoryPool pool;
    CUmemPoolProps props = {.type = 1, .handle_types = handle_types,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .max_bytes = max_bytes};
    CHECK_IS(api.cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    return pool;
}

/* Both drivers that free managed memory in the order of streams and those that do not. */
static void oversubscribed_async(void) {
    CUdeviceptr pointer;
    CUmemoryPool pool = pool_with(0, 0);
    CUresult expected = getenv("OVERSUBSCRIBE") ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    fake.card_full = 1;
    for (int way = 0; way < 8; way++) {
        fake.keeps_managed = way / 4;
        CHECK_IS(take_somehow(way % 4, &pointer, 40 * MIB, pool), expected);
        CHECK_IS(api_used(0), expected ? 0 : 40 * MIB);
        if (expected) continue;
        fake.busy = 1;
        CHECK_IS(api.cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
        CHECK_IS(api.cuStreamSynchronize(NULL), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 40 * MIB); /* the stream has not come so far */
        fake.busy = 0;
        CHECK_IS(fake.calls[FAKE_cuMemFree_v2], way < 4 ? 0 : way - 4);
        CHECK_IS(api.cuStreamSynchronize(NULL), CUDA_SUCCESS);
        CHECK_IS(fake.calls[FAKE_cuMemFree_v2], way < 4 ? 0 : way - 3);
        CHECK_IS(api_used(0), 0);
    }
}

/* The stream's context decides, even where another is current. */
static void oversubscribed_elsewhere(void) {
    CUdeviceptr pointer;
    CUstream first;
    CUdevice device;
    CHECK_IS(cuStreamCreate(&first, 0), CUDA_SUCCESS);
    fake_use(2); /* not one of ours */
    fake.card_full = 1;
    CUresult expected = getenv("OVERSUBSCRIBE") ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, first), expected);
    CHECK_IS(api_used(0), expected ? 0 : 40 * MIB);
    CHECK_IS(cuCtxGetDevice(&device), CUDA_SUCCESS);
    CHECK_IS(device, 2);
    if (expected) return;
    CHECK_IS(api.cuMemFreeAsync(pointer, first), CUDA_SUCCESS);
    CHECK_IS(api.cuStreamSynchronize(first), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* Of a stream of a green context, a driver may tell the context only by the second version. */
static void oversubscribed_green(void) {
    CUdeviceptr pointer;
    CUgreenCtx green;
    CUcontext view;
    CUstream first;
    CUresult expected = getenv("OVERSUBSCRIBE") ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_IS(api.cuGreenCtxCreate(&green, NULL, 0, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxFromGreenCtx(&view, green), CUDA_SUCCESS);
    CHECK_IS(cuCtxSetCurrent(view), CUDA_SUCCESS);
    CHECK_IS(cuStreamCreate(&first, 0), CUDA_SUCCESS);
    fake.card_full = fake.hides_green = 1;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, first), expected);
}

static uint64_t frees;

/* Waits for the stream: the driver was asked `asked` times to free a stand-in; `left` stays charged. */
static void wait_and_free(CUstream first, CUcontext current, uint64_t asked, uint64_t left) {
    CUcontext still;
    CHECK_IS(cuCtxSetCurrent(current), CUDA_SUCCESS);
    CHECK_IS(api.cuStreamSynchronize(first), CUDA_SUCCESS);
    CHECK_IS(cuCtxGetCurrent(&still), CUDA_SUCCESS);
    CHECK(still == current);
    CHECK_IS(fake.calls[FAKE_cuMemFree_v2], frees += asked);
    CHECK_IS(api_used(0), left);
}

/* A thread without a context may be the one that finds it to be freed; a driver may refuse. */
static void oversubscribed_nowhere(void) {
    CUdeviceptr pointer;
    if (!getenv("OVERSUBSCRIBE")) return;
    fake.card_full = fake.keeps_managed = 1;
    CHECK_IS(cuCtxGetCurrent(&home), CUDA_SUCCESS);
    for (int refused = 0; refused < 3; refused++) {
        CHECK_IS(api.cuMemAllocAsync(&pointer, 40 * MIB, stream), CUDA_SUCCESS);
        CHECK_IS(api.cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
        fake.fail = 999;
        for (int i = 0; i < refused; i++) wait_and_free(stream, NULL, 1, 40 * MIB);
        fake.fail = 0;
        wait_and_free(stream, NULL, 1, 0);
        wait_and_free(stream, home, 0, 0);
    }
}

/* Where managed memory would not do, it does not take the place. */
static void oversubscribed_apart(void) {
    CUdeviceptr pointer;
    CUmemoryPool pools[] = {pool_with(1, 0), pool_with(0, 4 * MIB)};
    fake.card_full = 1;
    for (int way = 2; way < 4; way++)
        for (size_t i = 0; i < COUNT(pools); i++)
            CHECK_IS(take_somehow(way, &pointer, MIB, pools[i]), CUDA_ERROR_OUT_OF_MEMORY);
    fake.capturing = 1;
    CHECK_IS(api.cuMemAllocAsync(&pointer, 4 * MIB, NULL), CUDA_SUCCESS);
    fake.capturing = 0;
    CHECK_IS(fake.calls[FAKE_cuMemAllocManaged], 0);
    CHECK_IS(api_used(0), 0);
    CHECK_IS(api.cuMemAllocManaged(&pointer, 4 * MIB, 1), CUDA_SUCCESS);
    fake.keeps_managed = 1; /* managed memory of the program's own is not the shim's to free */
    CHECK_IS(api.cuMemFreeAsync(pointer, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_IS(api_used(0), 4 * MIB);
}

/* Memory that the driver does not free again has no entry in the table, but stays charged. */
static void kept_though_refused(void) {
    CUdeviceptr pointer;
    fake.next = 2000 * MIB - 512;
    fake.frees_nothing = 1;
    CHECK_IS(api.cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(0), 64 * MIB);
    fake.frees_nothing = 0;
}

/* Small allocations are charged their pages, once; a page is given back with the last of them. */
static void small(void) {
    enum { EACH = 3 };
    CUdeviceptr first[EACH], second[EACH], other;
    for (int i = 0; i < EACH; i++) CHECK_IS(api.cuMemAlloc_v2(&first[i], 100), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 2 * MIB);
    fake.next = 100 * MIB;
    for (int i = 0; i < EACH; i++) CHECK_IS(api.cuMemAlloc_v2(&second[i], MIB / 2), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 4 * MIB);
    CHECK_IS(api.cuMemFree_v2(first[1]), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 4 * MIB);
    CHECK_IS(api.cuMemAlloc_v2(&other, 60 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.cuMemAlloc_v2(&other, 512), CUDA_ERROR_OUT_OF_MEMORY); /* it might need a page */
    for (int i = 0; i < EACH; i++) CHECK_IS(api.cuMemFree_v2(second[i]), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 62 * MIB);
    fake.next = 1000 * MIB - 512; /* reaches into a second page, and that is not allowed */
    CHECK_IS(api.cuMemAlloc_v2(&other, MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuMemFree_v2], 1 + EACH + 1);
    CHECK_IS(api_used(0), 62 * MIB);
    kept_though_refused();
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 2 * MIB); /* it is never freed */
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
    {"cuMemCreate", create},
    {"nothing_async", nothing_async},
    {"locality_domain", locality_domain},
    {"locality_domain_graph", locality_domain_graph},
    {"locality_domain_import", locality_domain_import},
    {"default_host_pool", default_host_pool},
    {"unmap_beside_host_memory", unmap_beside_host_memory},
    {"sparse_array_ends_with_its_context", sparse_array_ends_with_its_context},
    {"cuMemCreate_fails", create_fails},
    {"create_unremembered", create_unremembered},
    {"unmap_waits", unmap_waits},
    {"map_waits", map_waits},
    {"release_waits", release_waits},
    {"export_waits", export_waits},
    {"multicast_waits", multicast_waits},
    {"cuMemCreate_elsewhere", create_elsewhere},
    {"cuMemImportFromShareableHandle", import_handle},
    {"import_makes_room", import_makes_room},
    {"cuMemExportToShareableHandle", export_handle},
    {"cuMulticastBindMem", multicast},
    {"multicast_kept", multicast_kept},
    {"cuMemMapArrayAsync", sparse_array},
    {"cuCtxCreate", context},
    {"first_context_too_large", first_context_too_large},
    {"context_kept", context_kept},
    {"cuDevicePrimaryCtxRetain", primary},
    {"unseen_context", unseen_context},
    {"unmeasured_context", unmeasured_context},
    {"cuCtxSetLimit", context_limits},
    {"cuCtxFromGreenCtx", green_context},
    {"cuGreenCtxDestroy", green_contexts},
    {"contexts_beyond_the_table", contexts_beyond_the_table},
    {"cuArrayCreate", array_v1},
    {"cuArrayCreate_v2", array},
    {"cuArray3DCreate", array_3d_v1},
    {"cuArray3DCreate_v2", array_3d},
    {"cuMipmappedArrayCreate", mipmap},
    {"pool_waits", pool_waits},
    {"pool_reuse", pool_reuse},
    {"pool_gives_way", pool_gives_way},
    {"pool_is_empty_after_its_context", pool_is_empty_after_its_context},
    {"deferred_free_ends_with_its_context", deferred_free_ends_with_its_context},
    {"pool_grain", pool_grain},
    {"cuModuleLoad", modules},
    {"cuModuleLoadData", module_limits},
    {"cuLibraryGetModule", libraries},
    {"cuLibraryGetKernel", libraries},
    {"cuMemPoolCreate", custom_pool},
    {"cuMemPoolImportPointer", import_pointer},
    {"cuDeviceGraphMemTrim", graph_trim},
    {"cuGraphInstantiate", graphs},
    {"capture", capture},
    {"cuImportExternalMemory", external},
    {"cuExternalMemoryGetMappedBuffer", mapped_buffer},
    {"cuExternalMemoryGetMappedMipmappedArray", mapped_array},
    {"import_in_context", import_in_context},
    {"imports_wait", imports_wait},
    {"import_unremembered", import_unremembered},
    {"cuIpcOpenMemHandle", ipc_v1},
    {"cuIpcOpenMemHandle_v2", ipc},
    {"ipc_of_another_card", ipc_of_another_card},
    {"ipc_again", ipc_again},
    {"foreign_card", foreign_card},
    {"many", many},
    {"nvml_processes", nvml_processes},
    {"oversubscribed", oversubscribed},
    {"oversubscribed_async", oversubscribed_async},
    {"oversubscribed_elsewhere", oversubscribed_elsewhere},
    {"oversubscribed_green", oversubscribed_green},
    {"oversubscribed_nowhere", oversubscribed_nowhere},
    {"oversubscribed_apart", oversubscribed_apart},
    {"small", small},
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
