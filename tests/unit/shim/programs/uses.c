/*
 * Code that the driver loads when it is first used: `uses CASE WAY`, with functions looked up that
 * way. The container has 64 MiB of card 0. The test plays the node agent's part.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"
#include "cases.h"
#include "check.h"
#include "clock.h"

#define LIMIT (64 * MIB)
#define PAGE (2 * MIB)
#define PER_PAGE 4 /* uses that a page has room for */
#define AGENT_IS_GONE (2000 * MS)

static struct mizar_limits_live *live; /* what the agent says of card 0 */

static uint64_t counted(void) {
    return atomic_load((_Atomic uint64_t *)&api_usage()->cards[0].code_uses);
}

static void beat(void) {
    atomic_fetch_add((_Atomic uint32_t *)&live->beat, 1);
}

/* As the agent does it. */
static void tell(uint64_t bytes, uint64_t seen) {
    beat();
    atomic_store((_Atomic uint64_t *)&live->unaccounted_bytes, bytes);
    atomic_store((_Atomic uint64_t *)&live->code_seen, seen);
}

static void *map(const char *name, size_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("MIZAR_DIR"), name);
    int fd = open(path, O_RDWR);
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && mapped != MAP_FAILED);
    return mapped;
}

static CUdeviceptr take(uint64_t bytes) {
    CUdeviceptr pointer;
    CHECK_IS(api.cuMemAlloc_v2(&pointer, bytes), CUDA_SUCCESS);
    return pointer;
}

static uint64_t free_bytes(void) {
    size_t left, total;
    CHECK_IS(api.cuMemGetInfo_v2(&left, &total), CUDA_SUCCESS);
    return left;
}

static CUresult launch(uintptr_t function) {
    return api.cuLaunchKernel((CUfunction)function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

/* Launches `count` functions that were not launched yet. */
static CUresult launch_new(int count) {
    static uintptr_t next = 0x1000;
    CUresult result = CUDA_SUCCESS;
    while (count-- && result == CUDA_SUCCESS) result = launch(next += 0x100);
    return result;
}

static uint64_t found, seen, looks_after;

static void answer(void) {
    tell(found, counted());
}

/* From now on there is an agent, which finds `bytes`. */
static void begin_to_answer(uint64_t bytes) {
    found = bytes;
    while_asleep = answer;
}

static void look_in_the_end(void) {
    beat();
    if (!--looks_after) tell(0, seen);
}

/* There is an agent, which will have seen all uses counted until now. */
static void look_later(void) {
    seen = counted();
    looks_after = 20;
    while_asleep = look_in_the_end;
}

#define STACKS(kib) ((uint64_t)(kib) * 4 * MIB) /* of 4 * 1024 threads, beyond the usual 1 KiB of each */

static CUfunction function_of(uintptr_t module, int local_bytes) {
    CUfunction function;
    fake.local_bytes = local_bytes;
    CHECK_IS(api.cuModuleGetFunction(&function, (CUmodule)module, "one"), CUDA_SUCCESS);
    return function;
}

/* ---- what counts ------------------------------------------------------------------------------------ */

static void launches_count_once(void) {
    uint64_t before = counted();
    for (int i = 0; i < 100; i++) CHECK_IS(launch(0x100), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 1);
    CHECK_IS(launch(0x200), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 2);
}

static void ask_about(CUfunction function) {
    int number;
    CHECK_IS(api.cuFuncGetAttribute(&number, 0, function), CUDA_SUCCESS);
    CHECK_IS(api.cuFuncSetAttribute(function, 8, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, function, 32, 0),
             CUDA_SUCCESS);
    CHECK_IS(api.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&number, function, 32, 0, 0),
             CUDA_SUCCESS);
    CHECK_IS(api.cuOccupancyMaxPotentialBlockSize(&number, &number, function, NULL, 0, 0),
             CUDA_SUCCESS);
    CHECK_IS(api.cuOccupancyMaxPotentialBlockSizeWithFlags(&number, &number, function, NULL, 0, 0, 0),
             CUDA_SUCCESS);
}

static void each_handle_counts(void) {
    const char *names[] = {"one", "other"};
    CUmodule module = (CUmodule)0x2000;
    CUlibrary library = (CUlibrary)0x3000;
    CUfunction function;
    uint64_t before = counted();
    for (int i = 0; i < 4; i++) {
        const char *name = names[i % 2];
        CHECK_IS(api.cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
        CHECK_IS(api.cuLibraryGetGlobal(NULL, NULL, library, name), CUDA_SUCCESS);
        CHECK_IS(api.cuKernelGetFunction(&function, (CUkernel)0x4000), CUDA_SUCCESS);
        CHECK_IS(api.cuFuncLoad((CUfunction)0x5000), CUDA_SUCCESS);
    }
    CHECK_IS(counted(), before + 6);
    ask_about((CUfunction)0x5000);
    CHECK_IS(counted(), before + 6); /* it is loaded */
    ask_about((CUfunction)0x6000);
    before++;
    CHECK_IS(counted(), before + 6);
    CHECK_IS(api.cuModuleGetGlobal(NULL, NULL, module, "variable"), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleGetGlobal_v2(NULL, NULL, module, "another"), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 8);
}

static void graphs_count(void) {
    CUgraphExec exec;
    uint64_t before = counted();
    fake.graph_kernels[0] = fake.graph_kernels[1] = 0x100;
    fake.graph_kernels[2] = 0x200;
    for (int i = 0; i < 2; i++)
        CHECK_IS(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 2);
    CHECK_IS(launch(0x200), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 2);
}

static void captured_launches_count(void) {
    uint64_t before = counted();
    fake.capturing = 1;
    CHECK_IS(launch(0x100), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 1);
}

static void contexts_count(void) {
    CUcontext context;
    uint64_t before = counted();
    CHECK_IS(api.cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 1);
}

static void names_of_what_was_unloaded_count_again(void) {
    CUmodule modules[] = {(CUmodule)0x2000, (CUmodule)0x3000};
    CUfunction function;
    uint64_t before = counted();
    for (int i = 0; i < 2; i++) {
        CHECK_IS(api.cuModuleGetFunction(&function, modules[0], "one"), CUDA_SUCCESS);
        CHECK_IS(api.cuModuleGetFunction(&function, modules[1], "one"), CUDA_SUCCESS);
        CHECK_IS(launch(0x100), CUDA_SUCCESS);
        CHECK_IS(api.cuModuleUnload(modules[0]), CUDA_SUCCESS);
    }
    CHECK_IS(counted(), before + 4); /* of the one that stayed none */
}

static void what_fails_counts_again(void) {
    CUgraphExec exec;
    uint64_t before = counted();
    fake.graph_kernels[0] = 0x100;
    fake.fail = 999;
    CHECK_IS(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0), 999);
    fake.fail = 0;
    CHECK_IS(launch(0x100), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 2);
}

static void questions_before_the_start_settle_nothing(void) {
    CUfunction function;
    fake.lazy = -1;
    CHECK_IS(api.cuModuleGetFunction(&function, NULL, "one"), CUDA_SUCCESS);
    fake.lazy = 1;
    CHECK_IS(api.cuInit(0), CUDA_SUCCESS);
    api_use(0);
    CHECK_IS(counted(), 1);
    CHECK_IS(launch(0x100), CUDA_SUCCESS);
    CHECK_IS(counted(), 2);
}

static void memory_waits_for_a_look(void) {
    CHECK_IS(launch_new(8 * PER_PAGE), CUDA_SUCCESS);
    look_later();
    take(LIMIT - PAGE);
    CHECK_IS(looks_after, 0);
}

/* A process of the container that takes a page and dies with it. */
static void live_and_die(void) {
    int status;
    pid_t child = fork();
    if (!child) {
        take(PAGE);
        _exit(0);
    }
    CHECK_IS(waitpid(child, &status, 0), child);
    CHECK_IS(status, 0);
    CHECK_IS(api_used(0), PAGE);
}

/* Its code, which is not in the account. */
static void memory_of_the_dead_that_the_agent_still_reports_is_waited_for(void) {
    tell(20 * MIB, counted());
    live_and_die();
    begin_to_answer(0);
    take(LIMIT - PAGE);
    CHECK_IS(api_used(0), LIMIT - PAGE);
}

/* It may be of one that lives. */
static void the_dead_leave_no_room_that_the_agent_does_not_find(void) {
    CUdeviceptr pointer;
    tell(20 * MIB, counted());
    live_and_die();
    begin_to_answer(20 * MIB);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, LIMIT - PAGE), CUDA_ERROR_OUT_OF_MEMORY);
    take(LIMIT - PAGE - 20 * MIB);
}

static void eager_code_does_not_count(void) {
    CHECK_IS(launch_new(3), CUDA_SUCCESS);
    live_and_die();
    take(LIMIT);
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    api_use(0);
    CHECK_IS(counted(), 0);
    CHECK_IS(free_bytes(), LIMIT);
    CHECK_IS(launch((uintptr_t)function_of(0x7000, 2048)), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(1)); /* these grow nevertheless */
}

static void very_many(void) {
    uint64_t before = counted();
    for (int i = 0; i < 20000; i++) {
        CHECK_IS(launch_new(1), CUDA_SUCCESS);
        tell(0, counted());
    }
    CHECK_IS(counted(), before + 20000);
}

/* ---- stacks ------------------------------------------------------------------------------------------ */

static void stacks_are_charged_when_they_grow(void) {
    CHECK_IS(launch((uintptr_t)function_of(0x7000, 1024)), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
    CUfunction hungry = function_of(0x7100, 3072);
    CHECK_IS(api_used(0), 0);
    for (int i = 0; i < 3; i++) CHECK_IS(launch((uintptr_t)hungry), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(2));
    CHECK_IS(launch((uintptr_t)function_of(0x7200, 2048)), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(2));
    CHECK_IS(launch(0x7300), CUDA_SUCCESS); /* of unknown kind */
    CHECK_IS(api_used(0), STACKS(2));
}

static void kernels_of_libraries_have_stacks_too(void) {
    CUkernel kernel;
    fake.local_bytes = 9000, fake.kernel_local_bytes = 3072;
    CHECK_IS(api.cuLibraryGetKernel(&kernel, (CUlibrary)0x7000, "one"), CUDA_SUCCESS);
    CHECK_IS(launch((uintptr_t)kernel), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(2));
    fake.local_bytes = 4096, fake.kernel_local_bytes = 9000;
    CHECK_IS(launch((uintptr_t)function_of(0x7000, 4096)), CUDA_SUCCESS); /* met already */
    CHECK_IS(api.cuModuleUnload((CUmodule)0x7000), CUDA_SUCCESS);
    CHECK_IS(launch((uintptr_t)function_of(0x7100, 4096)), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(3));
}

/* Whatever was known of the function that had its handle. */
static void a_handle_is_another_function_s_after_its_module(void) {
    CHECK_IS(launch((uintptr_t)function_of(0x7000, 1024)), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleUnload((CUmodule)0x7000), CUDA_SUCCESS);
    uint64_t before = counted();
    CHECK_IS(launch((uintptr_t)function_of(0x7000, 3072)), CUDA_SUCCESS);
    CHECK_IS(counted(), before + 2);
    CHECK_IS(api_used(0), STACKS(2));
}

static void stacks_of_graphs_count(void) {
    CUgraphExec exec;
    fake.graph_kernels[0] = (uint64_t)function_of(0x7000, 3072);
    fake.graph_kernels[1] = 0x7100;
    CHECK_IS(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(2));
    fake.graph_kernels[2] = (uint64_t)function_of(0x7200, 1 << 20);
    CHECK_IS(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api_used(0), STACKS(2));
}

static void who_finds_no_room_for_stacks_is_not_launched(void) {
    CUfunction hungry = function_of(0x7000, 1 << 20);
    uint64_t calls = fake.calls[FAKE_cuLaunchKernel];
    for (int i = 0; i < 2; i++) CHECK_IS(launch((uintptr_t)hungry), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuLaunchKernel], calls);
    CHECK_IS(api_used(0), 0);
    fake.local_bytes = 2048;
    CHECK_IS(launch((uintptr_t)hungry), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(1));
}

static void a_limit_makes_no_stack_smaller_than_was_needed(void) {
    CHECK_IS(launch((uintptr_t)function_of(0x7000, 2048)), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(3));
    CHECK_IS(launch((uintptr_t)function_of(0x7100, 3072)), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(3));
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(2));
}

static _Thread_local bool is_other;
static atomic_bool other_waits, may_go_on;
static CUresult other_result;

/* The agent is alive, and the other thread waits for its query, until it may go on. */
static void hold_the_other(void) {
    beat();
    if (!is_other) return;
    atomic_store(&other_waits, true);
    while (!atomic_load(&may_go_on)) usleep(1000);
}

/* The other one waits when this returns. */
static pthread_t begin_other(void *(*work)(void *)) {
    pthread_t thread;
    while_asleep = hold_the_other;
    CHECK_IS(pthread_create(&thread, NULL, work, NULL), 0);
    while (!atomic_load(&other_waits)) usleep(1000);
    return thread;
}

static void end_other(pthread_t thread) {
    atomic_store(&may_go_on, true);
    CHECK_IS(pthread_join(thread, NULL), 0);
}

static void *set_large_stacks(void *unused) {
    is_other = true;
    fake_use(0);
    other_result = api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096);
    return unused;
}

/* The memory that it waits for is not reserved: a launch meanwhile has to find room itself. */
static void nobody_relies_on_a_limit_that_waits(void) {
    CUfunction hungry = function_of(0x7000, 3072);
    tell(0, counted());
    CHECK_IS(launch_new(4 * PER_PAGE), CUDA_SUCCESS);
    CUdeviceptr rest = take(LIMIT - 8 * MIB - STACKS(2) - PAGE);
    pthread_t other = begin_other(set_large_stacks);
    uint64_t before = api_used(0);
    CHECK_IS(launch((uintptr_t)hungry), CUDA_SUCCESS);
    CHECK_IS(api_used(0), before + STACKS(2));
    tell(0, counted());
    end_other(other);
    CHECK_IS(other_result, CUDA_SUCCESS);
    CHECK_IS(api.cuMemFree_v2(rest), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(3));
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

static void *instantiate(void *unused) {
    CUgraphExec exec;
    is_other = true;
    fake_use(0);
    other_result = api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0);
    return unused;
}

static void find_it_full(void) {
    tell(PAGE, counted() + 1000);
}

static void a_graph_that_waits_has_brought_nothing(void) {
    CUfunction hungry = function_of(0x7000, 3072);
    tell(0, counted());
    take(LIMIT - PAGE);
    CHECK_IS(launch_new(PER_PAGE), CUDA_SUCCESS);
    fake.graph_kernels[0] = (uint64_t)hungry;
    pthread_t other = begin_other(instantiate);
    while_asleep = find_it_full;
    CHECK_IS(launch((uintptr_t)hungry), CUDA_ERROR_OUT_OF_MEMORY);
    end_other(other);
    CHECK_IS(other_result, CUDA_ERROR_OUT_OF_MEMORY);
}

/* Also the fast way of a launch. */
static void a_kernel_comes_to_each_context(void) {
    CUcontext context;
    CUkernel kernel;
    fake.kernel_local_bytes = 3072;
    CHECK_IS(api.cuLibraryGetKernel(&kernel, (CUlibrary)0x7000, "one"), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) CHECK_IS(launch((uintptr_t)kernel), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK_IS(launch((uintptr_t)kernel), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 2 * STACKS(2));
    CHECK_IS(api.cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK_IS(api.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
    tell(0, counted());
    CHECK_IS(api.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    fake_use(0);
    CHECK_IS(launch((uintptr_t)kernel), CUDA_SUCCESS);
    CHECK_IS(api_used(0), STACKS(2));
}

/* ---- charges for memory that may not exist ----------------------------------------------------------- */

static uint64_t absent(void) {
    return atomic_load((_Atomic uint64_t *)&api_usage()->slots[0].cards[0].absent_bytes);
}

static void graphs_are_absent_until_they_are_launched(void) {
    CUgraphExec exec;
    fake.graph_sizes[0] = 20 * MIB;
    CHECK_IS(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 20 * MIB);
    CHECK_IS(absent(), 20 * MIB);
    CHECK_IS(api.cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
    CHECK_IS(absent(), 20 * MIB); /* perhaps */
    fake.graph_reserved = 20 * MIB;
    CHECK_IS(api.cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_IS(absent(), 0);
    fake.graph_reserved = 0; /* given back by: */
    CHECK_IS(api.cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    CHECK_IS(absent(), 20 * MIB);
    CHECK_IS(api.cuGraphExecDestroy(exec), CUDA_SUCCESS);
    CHECK_IS(absent(), 0);
    CHECK_IS(api_used(0), 0);
    fake.graph_sizes[0] = LIMIT - PAGE;
    CHECK_IS(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0), CUDA_SUCCESS);
    fake.graph_sizes[0] = PAGE;
    CHECK_IS(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(absent(), LIMIT - PAGE);
}

static void imports_may_be_absent(void) {
    CUexternalMemory memory;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC shape = {.type = 1, .bytes = 20 * MIB};
    CUdeviceptr buffer;
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
    CHECK_IS(api.cuImportExternalMemory(&memory, &shape), CUDA_SUCCESS);
    CHECK_IS(absent(), 20 * MIB);
    CHECK_IS(api.cuIpcOpenMemHandle_v2(&pointer, (CUipcMemHandle){{0}}, 1), CUDA_SUCCESS);
    CHECK_IS(absent(), 60 * MIB);
    CHECK_IS(api.cuExternalMemoryGetMappedBuffer(&buffer, memory, NULL), CUDA_SUCCESS);
    CHECK_IS(api.cuDestroyExternalMemory(memory), CUDA_SUCCESS);
    CHECK_IS(absent(), 60 * MIB);
    CHECK_IS(api.cuMemFree_v2(buffer), CUDA_SUCCESS);
    CHECK_IS(absent(), 40 * MIB);
    CHECK_IS(api.cuMemImportFromShareableHandle(&handle, NULL, 1), CUDA_SUCCESS);
    CHECK_IS(api.cuMemMap(0x1000000, 20 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_IS(absent(), 60 * MIB);
    CHECK_IS(api.cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
    CHECK_IS(api.cuMemUnmap(0x1000000, 20 * MIB), CUDA_SUCCESS);
    CHECK_IS(absent(), 20 * MIB);
    CHECK_IS(api.cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_IS(absent(), 0);
    CHECK_IS(api_used(0), 0);
}

static void load_module(uint64_t charged) {
    CUmodule loaded;
    fake.module_bytes = 4 * MIB;
    CHECK_IS(api.cuModuleLoadData(&loaded, ".version"), CUDA_SUCCESS);
    CHECK_IS(api_used(0), charged);
    CHECK_IS(api.cuModuleUnload(loaded), CUDA_SUCCESS);
}

static void module(void) {
    load_module(0); /* the agent will find it */
}

static void small_array(void) {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {64, 64, 0x20 /* float */, 1};
    CHECK_IS(api.cuArrayCreate_v2(&array, &shape), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 2 * MIB);
    CHECK_IS(api.cuArrayDestroy(array), CUDA_SUCCESS);
}

static void heap(void) {
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 28 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 20 * MIB);
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB), CUDA_SUCCESS);
}

static void context(void) {
    CUcontext other;
    CHECK_IS(api.cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 28 * MIB), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 20 * MIB);
    CHECK_IS(api.cuCtxDestroy_v2(other), CUDA_SUCCESS);
}

/* Code may have been loaded that is hidden by these charges. */
static void what_may_have_been_nothing_stays_until_a_look(void) {
    void (*const ways[])(void) = {module, small_array, heap, context};
    const uint64_t bytes[] = {4, 2, 20, 22 /* code came with it */};
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        tell(0, counted());
        uint64_t left = free_bytes();
        ways[i]();
        CHECK_IS(api_used(0), 0);
        CHECK_IS(free_bytes(), left - (bytes[i] * MIB - PAGE));
        tell(0, counted());
        CHECK_IS(free_bytes(), left);
    }
}

static void what_is_made_and_ended_without_an_agent_is_not_lost(void) {
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
    tell(0, counted());
    uint64_t left = 0;
    module(); /* there was one */
    pass(AGENT_IS_GONE);
    for (int i = 0; i < 100; i++) {
        load_module(4 * MIB);
        small_array();
        heap();
        if (!i) left = free_bytes(); /* the query may have missed code that the context's charge hides */
    }
    CHECK_IS(free_bytes(), left);
}

/* ---- modules, whose functions come later --------------------------------------------------------------- */

static void what_comes_with_a_module_is_left_to_the_agent(void) {
    CUmodule loaded;
    fake.module_bytes = 1000 * MIB; /* a neighbour's, most likely */
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
    tell(0, counted());
    CHECK_IS(api.cuModuleLoadData(&loaded, ".version"), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
    CHECK_IS(free_bytes(), LIMIT - 3 * PAGE); /* the most that the module may have taken */
    tell(PAGE, counted());
    CHECK_IS(free_bytes(), LIMIT - 2 * PAGE); /* as much as it has taken */
    CHECK_IS(api.cuModuleUnload(loaded), CUDA_SUCCESS);
}

static void a_module_without_room_is_unloaded_if_nvml_finds_it(void) {
    CUmodule loaded;
    fake.module_bytes = 2 * PAGE;
    take(LIMIT - 2 * PAGE);
    tell(0, counted());
    begin_to_answer(PAGE + 1);
    take(PAGE);
    CHECK_IS(api.cuModuleLoadData(&loaded, ".version"), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuModuleLoadData], 1);
    CHECK_IS(fake.calls[FAKE_cuModuleUnload], 1);
    begin_to_answer(0);
    tell(0, counted());
    CHECK_IS(api.cuModuleLoadData(&loaded, ".version"), CUDA_SUCCESS);
    CHECK_IS(fake.calls[FAKE_cuModuleUnload], 1);
}

static void a_module_has_room_kept_before_it_is_loaded(void) {
    CUmodule loaded;
    take(LIMIT - PAGE);
    tell(0, counted());
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
    CHECK_IS(api.cuModuleLoadData(&loaded, ".version"), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuModuleLoadData], 0);
}

/* ---- room for it ------------------------------------------------------------------------------------ */

static void a_page_is_kept(void) {
    CUdeviceptr pointer;
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
    CHECK_IS(free_bytes(), LIMIT - PAGE);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, LIMIT), CUDA_ERROR_OUT_OF_MEMORY);
    take(free_bytes());
    CHECK_IS(free_bytes(), 0);
    CHECK_IS(launch_new(2), CUDA_SUCCESS);
}

static void what_was_not_seen_yet_has_room(void) {
    CHECK_IS(launch_new((int)(PER_PAGE - counted())), CUDA_SUCCESS);
    CHECK_IS(free_bytes(), LIMIT - PAGE);
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
    CHECK_IS(free_bytes(), LIMIT - 2 * PAGE);
    tell(PAGE, counted() - 1);
    CHECK_IS(free_bytes(), LIMIT - 2 * PAGE);
    tell(PAGE, counted());
    CHECK_IS(free_bytes(), LIMIT - 2 * PAGE);
    tell(0, counted());
    CHECK_IS(free_bytes(), LIMIT - PAGE);
}

static void no_use_passes_the_limit(void) {
    take(LIMIT - PAGE);
    tell(0, counted());
    CHECK_IS(launch_new(PER_PAGE), CUDA_SUCCESS);
    CHECK_IS(launch_new(1), CUDA_ERROR_OUT_OF_MEMORY); /* the agent has not queried NVML */
    tell(0, counted());
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
    tell(PAGE, counted());
    begin_to_answer(PAGE);
    CUdeviceptr pointer;
    uint64_t launched = fake.calls[FAKE_cuLaunchKernel];
    CHECK_IS(launch_new(1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuFuncLoad((CUfunction)0x100), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 512), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(fake.calls[FAKE_cuLaunchKernel], launched);
    CHECK_IS(fake.calls[FAKE_cuFuncLoad], 0);
}

static void what_is_freed_is_room(void) {
    CUdeviceptr pointer = take(LIMIT - PAGE);
    tell(PAGE, counted());
    begin_to_answer(PAGE);
    CHECK_IS(launch_new(1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
}

static void what_pools_keep_is_room(void) {
    CUdeviceptr pointer;
    fake.pool_threshold = UINT64_MAX;
    CHECK_IS(api.cuMemAllocAsync(&pointer, LIMIT - PAGE, NULL), CUDA_SUCCESS);
    CHECK_IS(api.cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
    CHECK_IS(api.cuStreamSynchronize(NULL), CUDA_SUCCESS);
    tell(PAGE, counted());
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
}

static void *load(void *function) {
    fake_use(0);
    CHECK_IS(api.cuFuncLoad(function), CUDA_SUCCESS);
    return NULL;
}

static uint32_t begun(void) {
    return __atomic_load_n(&api_usage()->slots[0].code_begun[0], __ATOMIC_ACQUIRE);
}

/* Room is reserved for code that the driver is loading, and the usage file says that it is loading. */
static void uses_begin_and_end(void) {
    pthread_t thread;
    uint64_t before = counted();
    CHECK_IS(begun(), 0);
    fake.stays_in = FAKE_cuFuncLoad + 1;
    CHECK_IS(pthread_create(&thread, NULL, load, (void *)0x100), 0);
    while (!__atomic_load_n(&fake.is_in, __ATOMIC_ACQUIRE)) sched_yield();
    CHECK_IS(counted(), before + 1);
    CHECK_IS(begun(), 1);
    __atomic_store_n(&fake.stays_in, 0, __ATOMIC_RELEASE);
    CHECK_IS(pthread_join(thread, NULL), 0);
    CHECK_IS(counted(), before + 1);
    CHECK_IS(begun(), 0);
}

static void who_has_no_room_waits_for_a_look(void) {
    take(LIMIT - PAGE);
    tell(0, counted());
    CHECK_IS(launch_new(PER_PAGE), CUDA_SUCCESS);
    look_later();
    CHECK_IS(launch_new(1), CUDA_SUCCESS);
    CHECK_IS(looks_after, 0);
}

#define REFUSED_WITHIN_A_SECOND(call)                                    \
    do {                                                                 \
        uint64_t since = atomic_load(&clock_ns);                         \
        CHECK_IS(call, CUDA_ERROR_OUT_OF_MEMORY);                        \
        uint64_t waited = atomic_load(&clock_ns) - since;                \
        CHECK(waited >= 900 * MS && waited <= 1010 * MS);                \
    } while (0)

/* The agent is there, and does not look. */
static void nobody_waits_longer_than_a_second(void) {
    CUdeviceptr pointer;
    CUgraphExec exec;
    CUfunction hungry = function_of(0x7000, 3072), hungrier = function_of(0x7000, 3073);
    take(LIMIT - 4 * PAGE);
    tell(0, counted());
    CHECK_IS(launch_new(4 * PER_PAGE - 1), CUDA_SUCCESS);
    while_asleep = beat;
    /* There is room for its code, not for its stacks; then for neither. */
    REFUSED_WITHIN_A_SECOND(launch((uintptr_t)hungry));
    tell(0, counted());
    CHECK_IS(launch_new(4 * PER_PAGE - 1), CUDA_SUCCESS);
    fake.graph_kernels[0] = (uint64_t)hungrier;
    REFUSED_WITHIN_A_SECOND(api.cuGraphInstantiateWithFlags(&exec, (CUgraph)&fake, 0));
    REFUSED_WITHIN_A_SECOND(launch_new(1));
    REFUSED_WITHIN_A_SECOND(api.cuMemAlloc_v2(&pointer, PAGE));
    REFUSED_WITHIN_A_SECOND(api.cuMemAllocAsync(&pointer, PAGE, NULL));
}

static void scribbled_counts_lift_no_limit(void) {
    static const uint64_t values[] = {0, 1, 1 << 20, UINT64_MAX / 2, UINT64_MAX};
    struct mizar_usage *usage = map("usage", sizeof *usage);
    CUdeviceptr pointer;
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 5; k++) {
            usage->cards[0].code_uses = values[i];
            tell(0, values[k]);
            CHECK(free_bytes() <= LIMIT);
            CHECK_IS(api.cuMemAlloc_v2(&pointer, LIMIT + 1), CUDA_ERROR_OUT_OF_MEMORY);
        }
}

static const struct test_case cases[] = {
    {"launches_count_once", launches_count_once},
    {"each_handle_counts", each_handle_counts},
    {"graphs_count", graphs_count},
    {"captured_launches_count", captured_launches_count},
    {"contexts_count", contexts_count},
    {"names_of_what_was_unloaded_count_again", names_of_what_was_unloaded_count_again},
    {"what_fails_counts_again", what_fails_counts_again},
    {"questions_before_the_start_settle_nothing", questions_before_the_start_settle_nothing},
    {"memory_waits_for_a_look", memory_waits_for_a_look},
    {"memory_of_the_dead_that_the_agent_still_reports_is_waited_for",
     memory_of_the_dead_that_the_agent_still_reports_is_waited_for},
    {"the_dead_leave_no_room_that_the_agent_does_not_find",
     the_dead_leave_no_room_that_the_agent_does_not_find},
    {"eager_code_does_not_count", eager_code_does_not_count},
    {"very_many", very_many},
    {"uses_begin_and_end", uses_begin_and_end},
    {"stacks_are_charged_when_they_grow", stacks_are_charged_when_they_grow},
    {"kernels_of_libraries_have_stacks_too", kernels_of_libraries_have_stacks_too},
    {"a_handle_is_another_function_s_after_its_module", a_handle_is_another_function_s_after_its_module},
    {"stacks_of_graphs_count", stacks_of_graphs_count},
    {"who_finds_no_room_for_stacks_is_not_launched", who_finds_no_room_for_stacks_is_not_launched},
    {"a_limit_makes_no_stack_smaller_than_was_needed", a_limit_makes_no_stack_smaller_than_was_needed},
    {"nobody_relies_on_a_limit_that_waits", nobody_relies_on_a_limit_that_waits},
    {"a_graph_that_waits_has_brought_nothing", a_graph_that_waits_has_brought_nothing},
    {"a_kernel_comes_to_each_context", a_kernel_comes_to_each_context},
    {"what_is_made_and_ended_without_an_agent_is_not_lost", what_is_made_and_ended_without_an_agent_is_not_lost},
    {"graphs_are_absent_until_they_are_launched", graphs_are_absent_until_they_are_launched},
    {"imports_may_be_absent", imports_may_be_absent},
    {"what_may_have_been_nothing_stays_until_a_look", what_may_have_been_nothing_stays_until_a_look},
    {"what_comes_with_a_module_is_left_to_the_agent", what_comes_with_a_module_is_left_to_the_agent},
    {"a_module_without_room_is_unloaded_if_nvml_finds_it",
     a_module_without_room_is_unloaded_if_nvml_finds_it},
    {"a_module_has_room_kept_before_it_is_loaded", a_module_has_room_kept_before_it_is_loaded},
    {"a_page_is_kept", a_page_is_kept},
    {"what_was_not_seen_yet_has_room", what_was_not_seen_yet_has_room},
    {"no_use_passes_the_limit", no_use_passes_the_limit},
    {"what_is_freed_is_room", what_is_freed_is_room},
    {"what_pools_keep_is_room", what_pools_keep_is_room},
    {"who_has_no_room_waits_for_a_look", who_has_no_room_waits_for_a_look},
    {"nobody_waits_longer_than_a_second", nobody_waits_longer_than_a_second},
    {"scribbled_counts_lift_no_limit", scribbled_counts_lift_no_limit},
};

int main(int count, char **arguments) {
    size_t all = sizeof cases / sizeof *cases;
    if (count < 3) return cases_list(cases, all), 0;
    fake.lazy = strcmp(arguments[1], "eager_code_does_not_count") != 0;
    api_load(arguments[2]);
    if (strcmp(arguments[1], "questions_before_the_start_settle_nothing")) api_start();
    live = ((struct mizar_limits *)map("limits", sizeof(struct mizar_limits)))->live;
    beat();
    cases_run(cases, all, arguments[1]);
    return 0;
}
