/*
 * Keeps a card busy until it is killed: `load KIND [STREAMS [AHEAD [in_turns]]]`.
 *
 * Prints `ready` when it has a context, and begins when it reads a line. Runs on any driver with
 * kernels that take the given time. Work is submitted in units of about a millisecond (or
 * one kernel, if that is longer), AHEAD (4) of them for each stream, as by programs that never wait
 * without need.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/cuda_api.h"
#include "check.h"

#define US 1000u
#define MS 1000000u
#define UNIT MS
#define STALL (4 * MS)
#define COPIED 2000000 /* bytes; on the benchmark's slow bus a copy of this size takes as long as a stall */

enum { AHEAD_MAX = 8, STREAMS_MAX = 16 };
enum { MULTIPROCESSORS = 16, NON_BLOCKING = 1, RELAXED = 2, NO_TIMING = 2 };

typedef struct CUmod_st *CUmodule;

static const char image[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .entry spin_ns(.param .u64 ns)\n{\n"
    ".reg .pred %p;\n.reg .u64 %now, %end;\n"
    "ld.param.u64 %end, [ns];\nmov.u64 %now, %globaltimer;\nadd.u64 %end, %end, %now;\n"
    "again:\nmov.u64 %now, %globaltimer;\nsetp.lt.u64 %p, %now, %end;\n@%p bra again;\nret;\n}\n";

/* Only the functions that are needed, by names that all drivers have. */
static struct {
    CUresult (*init)(unsigned);
    CUresult (*device_attribute)(int *, int, CUdevice);
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*set_current)(CUcontext);
    CUresult (*load_module)(CUmodule *, const void *);
    CUresult (*get_function)(CUfunction *, CUmodule, const char *);
    CUresult (*create_stream)(CUstream *, unsigned);
    CUresult (*create_event)(CUevent *, unsigned);
    CUresult (*record)(CUevent, CUstream);
    CUresult (*wait)(CUevent);
    CUresult (*query)(CUevent);
    CUresult (*let_wait)(CUstream, CUevent, unsigned);
    CUresult (*call)(CUstream, CUhostFn *, void *);
    CUresult (*allocate)(CUdeviceptr *, size_t);
    CUresult (*allocate_host)(void **, size_t);
    CUresult (*copy)(CUdeviceptr, const void *, size_t, CUstream);
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, CUstream, void **, void **);
    CUresult (*launch_together)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                unsigned, unsigned, CUstream, void **);
    CUresult (*begin_capture)(CUstream, int);
    CUresult (*end_capture)(CUstream, CUgraph *);
    CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long);
    CUresult (*launch_graph)(CUgraphExec, CUstream);
} cu;

static const struct {
    const char *symbol;
    void *function;
} symbols[] = {
    {"cuInit", &cu.init},
    {"cuDeviceGetAttribute", &cu.device_attribute},
    {"cuDevicePrimaryCtxRetain", &cu.retain},
    {"cuCtxSetCurrent", &cu.set_current},
    {"cuModuleLoadData", &cu.load_module},
    {"cuModuleGetFunction", &cu.get_function},
    {"cuStreamCreate", &cu.create_stream},
    {"cuEventCreate", &cu.create_event},
    {"cuEventRecord", &cu.record},
    {"cuEventSynchronize", &cu.wait},
    {"cuEventQuery", &cu.query},
    {"cuStreamWaitEvent", &cu.let_wait},
    {"cuLaunchHostFunc", &cu.call},
    {"cuMemAlloc_v2", &cu.allocate},
    {"cuMemAllocHost_v2", &cu.allocate_host},
    {"cuMemcpyHtoDAsync_v2", &cu.copy},
    {"cuLaunchKernel", &cu.launch},
    {"cuLaunchCooperativeKernel", &cu.launch_together},
    {"cuStreamBeginCapture_v2", &cu.begin_capture},
    {"cuStreamEndCapture", &cu.end_capture},
    {"cuGraphInstantiateWithFlags", &cu.instantiate},
    {"cuGraphLaunch", &cu.launch_graph},
};

static CUfunction spin;
static unsigned multiprocessors;
static CUstream streams[STREAMS_MAX];
static CUgraphExec graphs[STREAMS_MAX];

static void open_driver(void) {
    CUcontext context;
    CUmodule module;
    int count;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        CHECK((*(void **)symbols[i].function = dlsym(driver, symbols[i].symbol)));
    CHECK_IS(cu.init(0), CUDA_SUCCESS);
    CHECK_IS(cu.retain(&context, 0), CUDA_SUCCESS);
    CHECK_IS(cu.set_current(context), CUDA_SUCCESS);
    CHECK_IS(cu.load_module(&module, image), CUDA_SUCCESS);
    CHECK_IS(cu.get_function(&spin, module, "spin_ns"), CUDA_SUCCESS);
    CHECK_IS(cu.device_attribute(&count, MULTIPROCESSORS, 0), CUDA_SUCCESS);
    multiprocessors = (unsigned)count;
}

/* ---- pieces of work: each returns its time (ns) ---- */

static unsigned kernel(CUstream stream, uint64_t ns, unsigned blocks) {
    void *parameters[] = {&ns};
    CHECK_IS(cu.launch(spin, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL), CUDA_SUCCESS);
    return (unsigned)ns;
}

/* A pseudo-random number from a sequence that differs between processes. */
static unsigned chance(void) {
    static uint64_t state;
    if (!state) state = (uint64_t)getpid();
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (unsigned)(state >> 33) % 100;
}

static unsigned us_2(unsigned stream) {
    return kernel(streams[stream], 2 * US, multiprocessors);
}

static unsigned us_5(unsigned stream) {
    return kernel(streams[stream], 5 * US, multiprocessors);
}

static unsigned us_20(unsigned stream) {
    return kernel(streams[stream], 20 * US, multiprocessors);
}

static unsigned us_200(unsigned stream) {
    return kernel(streams[stream], 200 * US, multiprocessors);
}

static unsigned ms_5(unsigned stream) {
    return kernel(streams[stream], 5 * MS, multiprocessors);
}

/* A time of 200 us that varies by up to two fifths. */
static unsigned uneven(unsigned stream) {
    return kernel(streams[stream], (120 + 160 * chance() / 99) * US, multiprocessors);
}

/* A few blocks each, so that kernels of different streams run side by side. */
static unsigned narrow(unsigned stream) {
    return kernel(streams[stream], 200 * US, 4);
}

/*
 * One function over small and large grids: a large one takes correspondingly more waves of blocks.
 */
static unsigned mixed(unsigned stream) {
    unsigned part = chance();
    unsigned rounds = part < 2 ? 250 : part < 30 ? 10 : 1;
    unsigned blocks = part % 7 ? 2 * multiprocessors * rounds : 8;
    return kernel(streams[stream], 20 * US, blocks) * (part % 7 ? rounds : 1);
}

/* One function whose time cannot be predicted from its shape. */
static unsigned erratic(unsigned stream) {
    unsigned part = chance();
    unsigned ns = part < 2 ? 5 * MS : part < 30 ? 200 * US : 20 * US;
    return kernel(streams[stream], ns, part % 7 ? multiprocessors : 8);
}

/*
 * Small kernels whose times vary, from a thread that takes longer to prepare each one than it runs.
 */
static unsigned eager(unsigned stream) {
    unsigned ns = chance() < 70 ? 10 * US : 60 * US;
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < 100 * US);
    return kernel(streams[stream], ns, multiprocessors);
}

/*
 * Work that tries to evade its charge: it is short right after each wait, and long within the grant
 * that follows, whose time cannot be measured because the card is idle when the grant ends. Never
 * returns.
 */
static unsigned hiding(unsigned stream) {
    CUevent done, never;
    CHECK_IS(cu.create_event(&done, NO_TIMING), CUDA_SUCCESS);
    CHECK_IS(cu.create_event(&never, NO_TIMING), CUDA_SUCCESS);
    for (unsigned round = 0;; round++) {
        for (int i = 0; i < 10; i++) kernel(streams[stream], 20 * US, multiprocessors);
        for (int i = 0; i < 10 && round > 100; i++) kernel(streams[stream], 2 * MS, multiprocessors);
        CHECK_IS(cu.record(done, streams[stream]), CUDA_SUCCESS);
        while (cu.query(done) != CUDA_SUCCESS) continue;
        CHECK_IS(cu.wait(never), CUDA_SUCCESS);
    }
}

static unsigned together(unsigned stream) {
    uint64_t ns = 200 * US;
    void *parameters[] = {&ns};
    CHECK_IS(cu.launch_together(spin, multiprocessors, 1, 1, 1024, 1, 1, 0, streams[stream],
                                parameters), CUDA_SUCCESS);
    return (unsigned)ns;
}

static void capture_graph(unsigned stream) {
    CUgraph graph;
    CHECK_IS(cu.begin_capture(streams[stream], RELAXED), CUDA_SUCCESS);
    for (int i = 0; i < 25; i++) kernel(streams[stream], 40 * US, multiprocessors);
    CHECK_IS(cu.end_capture(streams[stream], &graph), CUDA_SUCCESS);
    CHECK_IS(cu.instantiate(&graphs[stream], graph, 0), CUDA_SUCCESS);
}

static unsigned graph(unsigned stream) {
    if (!graphs[stream]) capture_graph(stream);
    CHECK_IS(cu.launch_graph(graphs[stream], streams[stream]), CUDA_SUCCESS);
    return MS;
}

/* ---- rounds of a millisecond's work and a stall, in which the card has nothing to do ---- */

/* One function in one shape, whose time cannot be predicted. */
static unsigned varied(unsigned stream) {
    unsigned sum = 0;
    while (sum < UNIT)
        sum += kernel(streams[stream], chance() < 10 ? 400 * US : 40 * US, multiprocessors);
    return sum;
}

static void copy(CUstream stream, size_t bytes) {
    static CUdeviceptr device;
    static void *host;
    if (!host) CHECK_IS(cu.allocate_host(&host, COPIED), CUDA_SUCCESS);
    if (!device) CHECK_IS(cu.allocate(&device, COPIED), CUDA_SUCCESS);
    CHECK_IS(cu.copy(device, host, bytes, stream), CUDA_SUCCESS);
}

static unsigned copying(unsigned stream) {
    unsigned ns = varied(stream);
    copy(streams[stream], COPIED);
    return ns;
}

static void rest(void *unused) {
    (void)unused;
    nanosleep(&(struct timespec){0, STALL}, NULL);
}

static unsigned calling_back(unsigned stream) {
    unsigned ns = varied(stream);
    CHECK_IS(cu.call(streams[stream], rest, NULL), CUDA_SUCCESS);
    return ns;
}

static void let_wait(CUstream who, CUstream whom) {
    static CUevent event;
    if (!event) CHECK_IS(cu.create_event(&event, NO_TIMING), CUDA_SUCCESS);
    CHECK_IS(cu.record(event, whom), CUDA_SUCCESS);
    CHECK_IS(cu.let_wait(who, event, 0), CUDA_SUCCESS);
}

static CUstream side(void) {
    static CUstream made;
    if (!made) CHECK_IS(cu.create_stream(&made, NON_BLOCKING), CUDA_SUCCESS);
    return made;
}

static unsigned prefetching(unsigned stream) {
    unsigned ns = varied(stream);
    let_wait(side(), streams[stream]);
    copy(side(), COPIED);
    let_wait(streams[stream], side());
    return ns;
}

/* The card always has work, but between two kernels there is always a call that may be a stall. */
static unsigned interrupted(unsigned stream) {
    unsigned ns = kernel(streams[stream], chance() < 50 ? 200 * US : 50 * US, multiprocessors);
    let_wait(side(), streams[stream]);
    copy(side(), 4);
    let_wait(streams[stream], side());
    return ns;
}

typedef unsigned piece(unsigned stream);

static const struct {
    const char *name;
    piece *piece;
} kinds[] = {
    {"us_2", us_2},           {"us_5", us_5},
    {"us_20", us_20},         {"us_200", us_200},     {"ms_5", ms_5},
    {"mixed", mixed},         {"erratic", erratic},   {"uneven", uneven},
    {"eager", eager}, {"hiding", hiding},         {"graph", graph},       {"narrow", narrow},
    {"cooperative", together}, {"copying", copying},  {"calling_back", calling_back},
    {"prefetching", prefetching}, {"interrupted", interrupted},
};

static piece *piece_of(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, name)) return kinds[i].piece;
    return NULL;
}

/* ---- the load ---- */

static void work(piece *next, unsigned count, unsigned ahead, bool in_turns) {
    static CUevent events[AHEAD_MAX * STREAMS_MAX];
    for (unsigned i = 0; i < count; i++)
        CHECK_IS(cu.create_stream(&streams[i], NON_BLOCKING), CUDA_SUCCESS);
    for (unsigned i = 0; i < ahead * count; i++)
        CHECK_IS(cu.create_event(&events[i], NO_TIMING), CUDA_SUCCESS);
    for (unsigned unit = 0;; unit = (unit + 1) % (ahead * count)) {
        unsigned stream = unit % count;
        CHECK_IS(cu.wait(events[unit]), CUDA_SUCCESS);
        for (unsigned ns = 0; ns < UNIT; stream = in_turns ? (stream + 1) % count : stream)
            ns += next(stream);
        CHECK_IS(cu.record(events[unit], streams[stream]), CUDA_SUCCESS);
    }
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    piece *next = piece_of(arguments[1]);
    int number = count > 2 ? atoi(arguments[2]) : 1, ahead = count > 3 ? atoi(arguments[3]) : 4;
    CHECK(next && number > 0 && number <= STREAMS_MAX && ahead > 0 && ahead <= AHEAD_MAX);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_driver();
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    work(next, (unsigned)number, (unsigned)ahead, count > 4 && !strcmp(arguments[4], "in_turns"));
}
