/*
 * A CUDA program driven by its input, one command a line, one answer a line: tests that need
 * several processes in a certain order are written with it in Python.
 *
 *   init | use DEVICE | alloc BYTES | free NUMBER | info | total DEVICE | pid | fork | vfork | raw
 *   clone | exec | jail | close | setuid UID | figures | await TOTAL | press BYTES | copy TIMES | exit
 *   pitch, managed, async, pooled, elsewhere, create or array BYTES, whole MiB | free_async NUMBER | sync
 *   handle BYTES | map HANDLE | retain MAPPING | release HANDLE | unmap MAPPING
 *   context BYTES | destroy
 */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "check.h"

enum { MOST = 1 << 20 };
static CUdeviceptr pointers[MOST]; /* of all that was ever taken */
static int live;
static char **arguments;

static void answer(long long code, long long detail) {
    printf("%lld %lld\n", code, detail);
    fflush(stdout);
}

static CUresult take_pooled(CUdeviceptr *pointer, size_t bytes) {
    static CUmemoryPool pool;
    CUmemPoolProps props = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUresult result = pool ? CUDA_SUCCESS : api.cuMemPoolCreate(&pool, &props);
    return result ? result : api.cuMemAllocFromPoolAsync(pointer, bytes, pool, NULL);
}

/* From the default pool of device 1, on the default stream of the context's device. */
static CUresult take_elsewhere(CUdeviceptr *pointer, size_t bytes) {
    CUmemoryPool pool;
    CUresult result = cuDeviceGetDefaultMemPool(&pool, 1);
    return result ? result : api.cuMemAllocFromPoolAsync(pointer, bytes, pool, NULL);
}

static CUresult take_handle(CUmemGenericAllocationHandle *handle, size_t bytes) {
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    return api.cuMemCreate(handle, bytes, &prop, 0);
}

static CUresult take_array(CUdeviceptr *handle, size_t bytes) {
    CUDA_ARRAY_DESCRIPTOR shape = {MIB / 64, bytes / MIB * 16, 0x20, 1}; /* of four bytes each */
    return api.cuArrayCreate_v2((CUarray *)handle, &shape);
}

static CUresult take(const char *way, CUdeviceptr *pointer, size_t bytes) {
    size_t pitch;
    if (!strcmp(way, "alloc")) return api.cuMemAlloc_v2(pointer, bytes);
    if (!strcmp(way, "pitch")) return api.cuMemAllocPitch_v2(pointer, &pitch, MIB, bytes / MIB, 4);
    if (!strcmp(way, "managed")) return api.cuMemAllocManaged(pointer, bytes, 1);
    if (!strcmp(way, "async")) return api.cuMemAllocAsync(pointer, bytes, NULL);
    if (!strcmp(way, "pooled")) return take_pooled(pointer, bytes);
    if (!strcmp(way, "elsewhere")) return take_elsewhere(pointer, bytes);
    if (!strcmp(way, "create")) return take_handle(pointer, bytes);
    if (!strcmp(way, "array")) return take_array(pointer, bytes);
    return -1;
}

static bool do_take(const char *way, size_t bytes) {
    CHECK(live < MOST);
    CUresult result = take(way, &pointers[live], bytes);
    if (result >= 0) answer(result, result == CUDA_SUCCESS ? live++ : -1);
    return result >= 0;
}

static void do_info(void) {
    size_t free_now = 0, total = 0;
    CUresult result = api.cuMemGetInfo_v2(&free_now, &total);
    answer(result == CUDA_SUCCESS ? (long long)free_now : -result, (long long)total);
}

static CUcontext primary, made;

static CUresult do_use(CUdevice device) {
    CUresult result = api.cuDevicePrimaryCtxRetain(&primary, device);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(primary) : result;
}

/* With memory in it: what became of the context, and of the memory. */
static void do_context(uint64_t bytes) {
    CUdeviceptr pointer;
    CUresult result = api.cuCtxCreate_v2(&made, 0, 0), inside = -1;
    if (result == CUDA_SUCCESS) inside = api.cuMemAlloc_v2(&pointer, bytes);
    CHECK_IS(cuCtxSetCurrent(primary), CUDA_SUCCESS);
    answer(result, inside);
}

/* ---- handles and mappings, each by its number ---- */

static struct {
    CUmemGenericAllocationHandle name;
    uint64_t bytes;
} handles[1000];
static struct {
    CUdeviceptr at;
    uint64_t bytes;
} mappings[1000];
static int handle_count, mapping_count;

static void do_create(uint64_t bytes) {
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUresult result = api.cuMemCreate(&handles[handle_count].name, bytes, &prop, 0);
    handles[handle_count].bytes = bytes;
    answer(result, result == CUDA_SUCCESS ? handle_count++ : -1);
}

static void do_map(unsigned long long number) {
    CUdeviceptr at = (uint64_t)(mapping_count + 1) << 40;
    mappings[mapping_count].at = at;
    mappings[mapping_count].bytes = handles[number].bytes;
    CUresult result = api.cuMemMap(at, handles[number].bytes, 0, handles[number].name, 0);
    answer(result, mapping_count++);
}

static void do_retain(unsigned long long number) {
    CUmemGenericAllocationHandle found;
    void *address = (void *)(uintptr_t)mappings[number].at;
    CUresult result = api.cuMemRetainAllocationHandle(&found, address);
    int handle = 0;
    while (handle < handle_count && handles[handle].name != found) handle++;
    answer(result, handle);
}

static void do_total(CUdevice device) {
    size_t bytes = 0;
    CUresult result = api.cuDeviceTotalMem_v2(&bytes, device);
    answer(result, (long long)bytes);
}

/* The present figures of all calls that report memory, which must not contradict each other. */
static void check_figures(uint64_t *used, uint64_t *total) {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    size_t free_now, info_total;
    CHECK_IS(api.cuMemGetInfo_v2(&free_now, &info_total), CUDA_SUCCESS);
    CHECK_IS(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    CHECK_IS(api.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    CHECK(free_now <= info_total);
    CHECK(memory.used <= memory.total && memory.free <= memory.total - memory.used);
    *used = memory.used;
    *total = info_total;
}

static void do_figures(void) {
    uint64_t used, total;
    size_t bytes;
    check_figures(&used, &total);
    CHECK_IS(api.cuDeviceTotalMem_v2(&bytes, 0), CUDA_SUCCESS);
    CHECK_IS(bytes, total);
    answer((long long)used, (long long)total);
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/*
 * Allocates and frees until the total has changed. Answers once when it has begun, and at the end with
 * the time at which the last round began that did not see the change.
 */
static void do_await(uint64_t wanted) {
    uint64_t used, total;
    CUdeviceptr pointer;
    for (long long began = now_ns(), missed = 0;; missed = began, began = now_ns()) {
        if (api.cuMemAlloc_v2(&pointer, 4 * MIB) == CUDA_SUCCESS)
            CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
        check_figures(&used, &total);
        if (total == wanted) return answer(CUDA_SUCCESS, missed);
        if (!missed) answer(CUDA_SUCCESS, 0);
    }
}

/* Asks for memory and frees it until it gets another answer than at first. Answers as do_await does. */
static void do_press(uint64_t bytes) {
    CUdeviceptr pointer;
    CUresult first = -1, result;
    for (long long began = now_ns(), missed = 0;; missed = began, began = now_ns()) {
        result = api.cuMemAlloc_v2(&pointer, bytes);
        if (result == CUDA_SUCCESS) CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
        if (missed && result != first) return answer(result, missed);
        first = result;
        if (!missed) answer(result, 0);
    }
}

/* 3 bytes to the device and 5 from there, `times` times. */
static void do_copy(uint64_t times) {
    char host[8];
    CUresult result = CUDA_SUCCESS;
    for (uint64_t i = 0; i < times && result == CUDA_SUCCESS; i++) {
        result = api.cuMemcpyHtoDAsync_v2(1 << 20, host, 3, NULL);
        if (result == CUDA_SUCCESS) result = api.cuMemcpyDtoH_v2(host, 1 << 20, 5);
    }
    answer(result, 0);
}

/* The parent waits while the child takes over input and output. */
static void do_fork(long child) {
    if (child == 0) {
        answer(0, getpid());
        return;
    }
    int status;
    waitpid((pid_t)child, &status, 0);
    answer(status, getpid());
}

/* To where there are no files; 0 if it may. */
static int do_jail(void) {
    if (geteuid() && unshare(CLONE_NEWUSER)) return 1;
    return chroot("/proc/self/fdinfo") || chdir("/");
}

static void do_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    do_fork(child);
}

static bool obey(const char *word, unsigned long long number) {
    if (!strcmp(word, "init")) answer(api.cuInit(0), 0);
    else if (!strcmp(word, "use")) answer(do_use((CUdevice)number), 0);
    else if (!strcmp(word, "free")) answer(api.cuMemFree_v2(pointers[number]), 0);
    else if (!strcmp(word, "free_async")) answer(api.cuMemFreeAsync(pointers[number], NULL), 0);
    else if (!strcmp(word, "sync")) answer(api.cuCtxSynchronize(), 0);
    else if (!strcmp(word, "info")) do_info();
    else if (!strcmp(word, "total")) do_total((CUdevice)number);
    else if (!strcmp(word, "pid")) answer(getpid(), 0);
    else if (!strcmp(word, "fork")) do_fork(fork());
    else if (!strcmp(word, "raw")) do_fork(syscall(SYS_fork));
    else if (!strcmp(word, "clone")) do_fork(syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0));
    else if (!strcmp(word, "vfork")) do_vfork();
    else if (!strcmp(word, "exec")) execv("/proc/self/exe", arguments);
    else if (!strcmp(word, "jail")) answer(do_jail(), 0);
    else if (!strcmp(word, "close")) answer(close_range(3, ~0u, 0), 0);
    else if (!strcmp(word, "setuid")) answer(setuid((uid_t)number), 0);
    else if (!strcmp(word, "figures")) do_figures();
    else if (!strcmp(word, "await")) do_await(number);
    else if (!strcmp(word, "press")) do_press(number);
    else if (!strcmp(word, "copy")) do_copy(number);
    else if (!strcmp(word, "handle")) do_create(number);
    else if (!strcmp(word, "map")) do_map(number);
    else if (!strcmp(word, "retain")) do_retain(number);
    else if (!strcmp(word, "release")) answer(api.cuMemRelease(handles[number].name), 0);
    else if (!strcmp(word, "unmap")) answer(api.cuMemUnmap(mappings[number].at, mappings[number].bytes), 0);
    else if (!strcmp(word, "context")) do_context(number);
    else if (!strcmp(word, "destroy")) answer(api.cuCtxDestroy_v2(made), 0);
    else return do_take(word, number);
    return true;
}

int main(int count, char **values) {
    char line[128], word[64];
    arguments = values;
    api_load(count > 1 ? values[1] : "dlsym");
    setvbuf(stdin, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long number = 0;
        if (sscanf(line, "%63s %llu", word, &number) < 1 || !obey(word, number)) break;
    }
    return 0;
}
