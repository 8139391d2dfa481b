/*
 * NVML tells of the container alone: `nvml NAME WAY` runs one of the snippets below with functions
 * looked up that way. The driver tells of a process 4711, which is somebody else's, as well.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api.h"
#include "cases.h"
#include "check.h"
#include "clock.h"

#define OTHER 4711

static nvmlDevice_t device_of(unsigned index) {
    nvmlDevice_t device;
    CHECK_IS(nvmlDeviceGetHandleByIndex_v2(index, &device), NVML_SUCCESS);
    return device;
}

static struct mizar_usage *open_usage(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/usage", getenv("MIZAR_DIR"));
    int fd = open(path, O_RDWR);
    struct mizar_usage *usage =
        mmap(NULL, MIZAR_USAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && usage != MAP_FAILED);
    close(fd);
    return usage;
}

/* What the meter does, which has no work to measure here. This process is the only one. */
static void charge(unsigned card, uint64_t ns) {
    struct mizar_usage *usage = open_usage();
    CHECK_IS(usage->slots[0].pid, getpid());
    __atomic_fetch_add(&usage->cards[card].compute.charged_ns, ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&usage->slots[0].cards[card].gpu_time_ns, ns, __ATOMIC_RELAXED);
    munmap(usage, MIZAR_USAGE_SIZE);
}

static unsigned rate(unsigned index) {
    nvmlUtilization_t rates;
    CHECK_IS(api.nvmlDeviceGetUtilizationRates(device_of(index), &rates), NVML_SUCCESS);
    CHECK_IS(rates.memory, rates.gpu < 90 ? rates.gpu / 2 : 45);
    return rates.gpu;
}

/* Not metered: the driver's figure of our own process. */
static void rates(void) {
    CHECK_IS(rate(0), 30);
    CHECK_IS(rate(3), 30); /* not one of ours, but we are on it all the same, the driver says */
}

/* Metered: what was charged, however seldom somebody asks, and on which card. */
static void metered(void) {
    CHECK_IS(rate(0), 0);
    pass(200 * MS);
    charge(0, 60 * MS);
    CHECK_IS(rate(0), 30);
    charge(0, 100 * MS);
    CHECK_IS(rate(0), 30); /* asked again at once: the same span */
    CHECK_IS(rate(1), 0);
    pass(200 * MS);
    CHECK_IS(rate(0), 50);
    pass(200 * MS);
    charge(0, 2000 * MS);
    CHECK_IS(rate(0), 100);
    pass(200 * MS);
    CHECK_IS(rate(0), 0);
}

static void samples(void) {
    nvmlProcessUtilizationSample_t found[4];
    unsigned count = 0;
    nvmlDevice_t device = device_of(0);
    CHECK_IS(api.nvmlDeviceGetProcessUtilization(device, NULL, &count, 5),
             NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_IS(count, 1);
    CHECK_IS(api.nvmlDeviceGetProcessUtilization(device, found, &count, 5), NVML_SUCCESS);
    CHECK_IS(count, 1);
    CHECK_IS(found[0].pid, getpid());
    CHECK_IS(found[0].time, 7);
    CHECK_IS(found[0].sm, 30);
    CHECK_IS(found[0].memory, 7);
}

static void infos(void) {
    nvmlProcessUtilizationInfo_v1_t found[4];
    nvmlProcessesUtilizationInfo_t list = {.version = 0x01000018};
    nvmlDevice_t device = device_of(0);
    CHECK_IS(api.nvmlDeviceGetProcessesUtilizationInfo(device, &list),
             NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_IS(list.count, 1);
    list.infos = found;
    CHECK_IS(api.nvmlDeviceGetProcessesUtilizationInfo(device, &list), NVML_SUCCESS);
    CHECK_IS(list.count, 1);
    CHECK_IS(list.since, 99);
    CHECK_IS(found[0].pid, getpid());
    CHECK_IS(found[0].sm, 30);
    list.version = 7;
    CHECK_IS(api.nvmlDeviceGetProcessesUtilizationInfo(device, &list), NVML_ERROR_INVALID_ARGUMENT);
}

/* Another process has taken the slot, and begins at nothing. */
static void replace_process(void) {
    struct mizar_usage *usage = open_usage();
    usage->slots[0].generation++;
    usage->slots[0].cards[0].gpu_time_ns = 0;
    munmap(usage, MIZAR_USAGE_SIZE);
}

static nvmlReturn_t ask_samples(unsigned card, unsigned long long since,
                                nvmlProcessUtilizationSample_t *found) {
    unsigned count = 4;
    nvmlDevice_t device = device_of(card);
    nvmlReturn_t result =
        api.nvmlDeviceGetProcessUtilization(device, found, &count, since);
    CHECK_IS(count, result == NVML_SUCCESS);
    return result;
}

/*
 * Metered: the container's own account of its processes, whatever PIDs the driver tells. What is found
 * is of the time since somebody last asked, and is no news to who has seen it.
 */
static void metered_processes(void) {
    nvmlProcessUtilizationSample_t first, found[4];
    unsigned count = 0;
    CHECK_IS(api.nvmlDeviceGetProcessUtilization(device_of(0), NULL, &count, 0),
             NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_IS(count, 1);
    CHECK_IS(ask_samples(0, 0, found), NVML_ERROR_NOT_FOUND); /* nothing was done */
    pass(200 * MS);
    charge(0, 60 * MS);
    CHECK_IS(ask_samples(0, 0, &first), NVML_SUCCESS);
    CHECK_IS(first.pid, getpid());
    CHECK_IS(first.sm, 30);
    CHECK_IS(first.memory, 15);
    charge(0, 10 * MS);
    CHECK_IS(ask_samples(0, first.time - 1, found), NVML_SUCCESS);
    CHECK_IS(found[0].sm, 30); /* the same answer */
    CHECK_IS(ask_samples(0, first.time, found), NVML_ERROR_NOT_FOUND);
    CHECK_IS(ask_samples(1, 0, found), NVML_ERROR_NOT_FOUND);
    pass(200 * MS);
    replace_process();
    charge(0, 2000 * MS);
    CHECK_IS(ask_samples(0, first.time, found), NVML_SUCCESS);
    CHECK(found[0].time > first.time);
    CHECK_IS(found[0].sm, 100);
    pass(200 * MS);
    CHECK_IS(ask_samples(0, found[0].time, found), NVML_ERROR_NOT_FOUND);
}

static void metered_infos(void) {
    nvmlProcessUtilizationInfo_v1_t found[4];
    nvmlProcessesUtilizationInfo_t list = {.version = 0x01000018, .count = 4, .infos = found};
    CHECK_IS(api.nvmlDeviceGetProcessesUtilizationInfo(device_of(0), &list), NVML_ERROR_NOT_FOUND);
    pass(200 * MS);
    charge(0, 60 * MS);
    list.count = 4;
    CHECK_IS(api.nvmlDeviceGetProcessesUtilizationInfo(device_of(0), &list), NVML_SUCCESS);
    CHECK_IS(list.count, 1);
    CHECK_IS(found[0].pid, getpid());
    CHECK_IS(found[0].sm, 30);
    CHECK_IS(found[0].memory, 15);
    list = (nvmlProcessesUtilizationInfo_t){.version = 0x01000018, .since = found[0].time};
    CHECK_IS(api.nvmlDeviceGetProcessesUtilizationInfo(device_of(0), &list),
             NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_IS(list.count, 1);
    list.version = 7;
    CHECK_IS(api.nvmlDeviceGetProcessesUtilizationInfo(device_of(0), &list), NVML_ERROR_INVALID_ARGUMENT);
}

/* Over a process's life; who has nothing on the card is not told of. */
static void metered_accounting(void) {
    nvmlAccountingStats_t stats;
    nvmlAccountingStats_v2_t stats_v2 = {.pid = (unsigned)getpid()};
    unsigned pids[4], count = 0;
    nvmlDevice_t device = device_of(0);
    CHECK_IS(api.nvmlDeviceGetAccountingPids(device, &count, NULL), NVML_SUCCESS);
    CHECK_IS(count, 0);
    charge(0, 3600000000000000);
    CHECK_IS(api.nvmlDeviceGetAccountingPids(device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_IS(count, 1);
    CHECK_IS(api.nvmlDeviceGetAccountingPids(device, &count, pids), NVML_SUCCESS);
    CHECK_IS(pids[0], getpid());
    CHECK_IS(api.nvmlDeviceGetAccountingStats(device, (unsigned)getpid(), &stats), NVML_SUCCESS);
    CHECK_IS(stats.gpu, 100);
    CHECK_IS(stats.running, 1);
    CHECK_IS(api.nvmlDeviceGetAccountingStats_v2(device, &stats_v2), NVML_SUCCESS);
    CHECK_IS(stats_v2.gpu, 100);
    CHECK_IS(stats_v2.start_time, stats.start_time);
    CHECK(stats.start_time / 1000000 <= (unsigned long long)time(NULL) + 1); /* not known finely */
    CHECK_IS(api.nvmlDeviceGetAccountingStats(device, OTHER, &stats), NVML_ERROR_NOT_FOUND);
}

static unsigned sample(int type) {
    nvmlSample_t found[2];
    unsigned count = 2;
    int value_type;
    CHECK_IS(api.nvmlDeviceGetSamples(device_of(0), type, 5, &value_type, &count, found),
             NVML_SUCCESS);
    CHECK_IS(count, 1);
    CHECK_IS(found[0].time, 6);
    return found[0].value.number;
}

static void card_samples(void) {
    CHECK_IS(sample(NVML_GPU_UTILIZATION_SAMPLES), 30);
    CHECK_IS(sample(NVML_MEMORY_UTILIZATION_SAMPLES), 27);
    CHECK_IS(sample(0), 250000); /* power */
}

static void accounting_pids(void) {
    unsigned pids[4], count = 4;
    CHECK_IS(api.nvmlDeviceGetAccountingPids(device_of(0), &count, pids), NVML_SUCCESS);
    CHECK_IS(count, 1);
    CHECK_IS(pids[0], getpid());
    count = 1;
    CHECK_IS(api.nvmlDeviceGetAccountingPids(device_of(0), &count, pids),
             NVML_ERROR_INSUFFICIENT_SIZE);
}

static void accounting(void) {
    nvmlAccountingStats_t stats;
    nvmlDevice_t device = device_of(0);
    CHECK_IS(api.nvmlDeviceGetAccountingStats(device, (unsigned)getpid(), &stats), NVML_SUCCESS);
    CHECK_IS(stats.gpu, 30);
    CHECK_IS(api.nvmlDeviceGetAccountingStats(device, OTHER, &stats), NVML_ERROR_NOT_FOUND);
}

static void accounting_v2(void) {
    nvmlAccountingStats_v2_t stats = {.pid = (unsigned)getpid()};
    nvmlDevice_t device = device_of(0);
    CHECK_IS(api.nvmlDeviceGetAccountingStats_v2(device, &stats), NVML_SUCCESS);
    CHECK_IS(stats.gpu, 30);
    stats.pid = OTHER;
    CHECK_IS(api.nvmlDeviceGetAccountingStats_v2(device, &stats), NVML_ERROR_NOT_FOUND);
}

/* Whoever works by MPS is told of as any other process. */
static void mps(void) {
    nvmlProcessInfo_v1_t old[2];
    nvmlProcessInfo_t found[2];
    unsigned count = 2;
    nvmlDevice_t device = device_of(0);
    CHECK_IS(api.nvmlDeviceGetMPSComputeRunningProcesses(device, &count, old), NVML_SUCCESS);
    CHECK_IS(count, 0);
    count = 2;
    CHECK_IS(api.nvmlDeviceGetMPSComputeRunningProcesses_v2(device, &count, found), NVML_SUCCESS);
    CHECK_IS(count, 0);
    count = 2;
    CHECK_IS(api.nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, found), NVML_SUCCESS);
    CHECK_IS(count, 0);
}

static void details(void) {
    CUdeviceptr pointer;
    nvmlProcessDetail_v1_t found[2];
    nvmlProcessDetailList_t list = {.version = 0x1000018, .mode = NVML_PROCESS_MODE_COMPUTE};
    nvmlDevice_t device = device_of(0);
    CHECK_IS(api.cuMemAlloc_v2(&pointer, 24 * MIB), CUDA_SUCCESS);
    CHECK_IS(api.nvmlDeviceGetRunningProcessDetailList(device, &list),
             NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_IS(list.count, 1);
    list.infos = found;
    CHECK_IS(api.nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_SUCCESS);
    CHECK_IS(found[0].pid, getpid());
    CHECK_IS(found[0].used, 24 * MIB);
    list.mode = 1; /* graphics */
    CHECK_IS(api.nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_SUCCESS);
    CHECK_IS(list.count, 0);
    list.version = 1;
    CHECK_IS(api.nvmlDeviceGetRunningProcessDetailList(device, &list),
             NVML_ERROR_INVALID_ARGUMENT);
}

static const struct test_case snippets[] = {
    {"nvmlDeviceGetUtilizationRates", rates},
    {"nvmlDeviceGetProcessUtilization", samples},
    {"nvmlDeviceGetProcessesUtilizationInfo", infos},
    {"nvmlDeviceGetSamples", card_samples},
    {"nvmlDeviceGetAccountingPids", accounting_pids},
    {"nvmlDeviceGetAccountingStats", accounting},
    {"nvmlDeviceGetAccountingStats_v2", accounting_v2},
    {"nvmlDeviceGetMPSComputeRunningProcesses", mps},
    {"nvmlDeviceGetRunningProcessDetailList", details},
    {"metered", metered},
    {"metered_processes", metered_processes},
    {"metered_infos", metered_infos},
    {"metered_accounting", metered_accounting},
};

int main(int count, char **arguments) {
    size_t number = sizeof snippets / sizeof *snippets;
    if (count < 3) return cases_list(snippets, number), 0;
    api_load(arguments[2]);
    api_start();
    cases_run(snippets, number, arguments[1]);
    return 0;
}
