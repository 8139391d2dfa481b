/*
 * NVML reports only the container: `nvml NAME WAY` runs one of the snippets below with functions
 * looked up that way. The driver also reports a process 4711, of another container.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api.h"
#include "cases.h"
#include "check.h"
#include "clock.h"

static nvmlDevice_t device_of(unsigned index) {
    nvmlDevice_t device;
    CHECK_IS(nvmlDeviceGetHandleByIndex_v2(index, &device), NVML_SUCCESS);
    return device;
}

static void *map_file(const char *name, size_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("MIZAR_DIR"), name);
    int fd = open(path, O_RDWR);
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && mapped != MAP_FAILED);
    close(fd);
    return mapped;
}

/* Charges as the meter would, which has no work to measure here. This is the only process. */
static void charge(unsigned card, uint64_t ns) {
    struct mizar_usage *usage = map_file("usage", MIZAR_USAGE_SIZE);
    CHECK_IS(usage->slots[0].pid, getpid());
    __atomic_fetch_add(&usage->cards[card].compute.charged_ns, ns, __ATOMIC_RELAXED);
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
    CHECK_IS(rate(3), 30); /* no card of the container, but according to the driver the process uses it */
}

/* Metered: the charged time, however rare the queries are, and by card. */
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

/* The first query is answered at once: nvidia-smi makes only one. */
static void metered_at_once(void) {
    uint64_t before = atomic_load(&clock_ns);
    for (unsigned index = 0; index < 2; index++) CHECK_IS(rate(index), 0);
    CHECK_IS(atomic_load(&clock_ns), before); /* no thread slept */
}

/* ---- a device's card is asked for once, until the limits change ---- */

extern uint64_t fake_nvml_uuids;

/* zlib's CRC-32 of what the limits cover by it, a bit at a time. */
static uint32_t crc_of(const struct mizar_limits *limits) {
    const unsigned char *bytes = (const unsigned char *)limits;
    uint32_t crc = UINT32_MAX;
    for (size_t i = MIZAR_LIMITS_CRC_FROM; i < MIZAR_LIMITS_CRC_TO; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

/* Each of the first two cards gets the other's limit. */
static void swap_cards(struct mizar_limits *limits) {
    char uuid[MIZAR_UUID_SIZE];
    memcpy(uuid, limits->cards[0].uuid, sizeof uuid);
    memcpy(limits->cards[0].uuid, limits->cards[1].uuid, sizeof uuid);
    memcpy(limits->cards[1].uuid, uuid, sizeof uuid);
    limits->crc = crc_of(limits);
}

static uint64_t total_of(unsigned index) {
    nvmlMemory_t memory;
    nvmlMemory_v2_t second = {.version = 0x2000028};
    CHECK_IS(api.nvmlDeviceGetMemoryInfo(device_of(index), &memory), NVML_SUCCESS);
    CHECK_IS(api.nvmlDeviceGetMemoryInfo_v2(device_of(index), &second), NVML_SUCCESS);
    CHECK_IS(second.total, memory.total);
    return memory.total;
}

static uint64_t cuda_total(void) {
    size_t left, total;
    CHECK_IS(api.cuMemGetInfo_v2(&left, &total), CUDA_SUCCESS);
    return total;
}

static void check_totals(uint64_t first, uint64_t second, uint64_t uuids) {
    uint64_t before = fake_nvml_uuids;
    for (int i = 0; i < 100; i++) {
        CHECK_IS(total_of(0), first);
        CHECK_IS(total_of(1), second);
    }
    CHECK_IS(fake_nvml_uuids - before, uuids);
}

static void asked_once(void) {
    check_totals(64 * MIB, 32 * MIB, 2);
    check_totals(64 * MIB, 32 * MIB, 0);
}

/* It cannot be observed whether the limits are read, only which values are in use. */
static void read_when_changed(void) {
    struct mizar_limits *limits = map_file("limits", MIZAR_LIMITS_SIZE);
    check_totals(64 * MIB, 32 * MIB, 2);
    limits->cards[0].memory_limit = 48 * MIB;
    swap_cards(limits);
    check_totals(64 * MIB, 32 * MIB, 0);
    CHECK_IS(cuda_total(), 64 * MIB);
    limits->seq += 2;
    check_totals(32 * MIB, 48 * MIB, 2);
}

/* ---- figures of processes that are refused: NOT_SUPPORTED, without asking the driver ---- */

extern uint64_t fake_nvml_calls;

#define REFUSED(call)                            \
    do {                                         \
        uint64_t before = fake_nvml_calls;       \
        CHECK_IS(call, NVML_ERROR_NOT_SUPPORTED); \
        CHECK_IS(fake_nvml_calls, before);       \
    } while (0)

static void samples(void) {
    nvmlProcessUtilizationSample_t found[4];
    unsigned count = 4;
    REFUSED(api.nvmlDeviceGetProcessUtilization(device_of(0), found, &count, 5));
}

static void infos(void) {
    REFUSED(api.nvmlDeviceGetProcessesUtilizationInfo(device_of(0), NULL));
}

static void accounting_pids(void) {
    unsigned pids[4], count = 4;
    REFUSED(api.nvmlDeviceGetAccountingPids(device_of(0), &count, pids));
}

static void accounting(void) {
    REFUSED(api.nvmlDeviceGetAccountingStats(device_of(0), (unsigned)getpid(), NULL));
}

static void accounting_v2(void) {
    REFUSED(api.nvmlDeviceGetAccountingStats_v2(device_of(0), NULL));
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

/* Processes under MPS are listed like all others. */
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
    {"metered_at_once", metered_at_once},
    {"asked_once", asked_once},
    {"read_when_changed", read_when_changed},
};

int main(int count, char **arguments) {
    size_t number = sizeof snippets / sizeof *snippets;
    if (count < 3) return cases_list(snippets, number), 0;
    api_load(arguments[2]);
    api_start();
    cases_run(snippets, number, arguments[1]);
    return 0;
}
