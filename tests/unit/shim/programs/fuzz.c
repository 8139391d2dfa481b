/*
 * Damages the regions and checks what a program can get: `fuzz before|during ROUNDS SEED`, or, one
 * word after the other, `fuzz words NTH SEED` (only every NTH word). Whatever the files say, it must
 * neither crash, nor hang, nor get more than the 64 MiB of the sound limits.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "check.h"

#define LIMIT (64 * MIB)
#define CHUNK (4 * MIB)

static uint64_t state;

static uint64_t random_next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static unsigned char *map(const char *name, size_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("MIZAR_DIR"), name);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* A bit, a word, or a stretch of noise or of one value, mostly where something is. */
static void damage(unsigned char *region, size_t bytes) {
    size_t at = random_next() % (random_next() % 4 ? 6144 : bytes);
    size_t length = 1 + random_next() % 200;
    unsigned char value = random_next() % 2 ? 0xff : (unsigned char)random_next();
    if (at + length > bytes) length = bytes - at;
    switch (random_next() % 4) {
        case 0: region[at] ^= (unsigned char)(1 << random_next() % 8); break;
        case 1: memset(region + at, value, length); break;
        case 2: memset(region + at, 0, length); break;
        default:
            for (size_t i = 0; i < length; i++) region[at + i] = (unsigned char)random_next();
    }
}

/* Takes all it can get; the bytes it got. */
static uint64_t grab(uint64_t got) {
    CUdeviceptr pointer;
    for (int i = 0; i < 40 && api.cuMemAlloc_v2(&pointer, CHUNK) == CUDA_SUCCESS; i++) got += CHUNK;
    return got;
}

static void child_before(void) {
    alarm(60);
    api_load("dlsym"); /* here, so that the child opens the files itself */
    if (api.cuInit(0) != CUDA_SUCCESS) return;
    fake_use(0);
    CHECK(grab(0) <= LIMIT);
}

static void child_during(unsigned char *own_usage, unsigned char *own_limits) {
    CUdeviceptr pointers[8];
    int live = 0;
    alarm(60);
    api_start();
    for (int i = 0; i < 30; i++) {
        if (random_next() % 3 == 0) {
            if (random_next() % 4)
                damage(own_usage, MIZAR_USAGE_SIZE);
            else
                damage(own_limits, MIZAR_LIMITS_SIZE);
        }
        if (live < 8 && api.cuMemAlloc_v2(&pointers[live], 2 * CHUNK) == CUDA_SUCCESS) live++;
        if (live && random_next() % 2) CHECK_IS(api.cuMemFree_v2(pointers[--live]), CUDA_SUCCESS);
    }
    CHECK(grab((uint64_t)live * 2 * CHUNK) <= LIMIT);
}

/* ---- word by word ---- */

static unsigned char sound_limits[MIZAR_LIMITS_SIZE], sound_usage[MIZAR_USAGE_SIZE];
static unsigned char *limits, *usage;

/* Asks everything there is, takes what it gets, and gives it back. */
static void live_with_it(void) {
    CUdeviceptr pointers[10];
    size_t free_now, total;
    nvmlProcessInfo_t infos[4];
    nvmlDevice_t device;
    nvmlMemory_t memory;
    unsigned processes = 4;
    int count = 0;
    while (count < 10 && api.cuMemAlloc_v2(&pointers[count], 8 * MIB) == CUDA_SUCCESS) count++;
    CHECK((uint64_t)count * 8 * MIB <= LIMIT);
    api.cuMemGetInfo_v2(&free_now, &total);
    CHECK_IS(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    api.nvmlDeviceGetMemoryInfo(device, &memory);
    api.nvmlDeviceGetComputeRunningProcesses_v3(device, &processes, infos);
    api.cuLaunchKernel((CUfunction)0x1000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    api.cuCtxSynchronize();
    while (count) CHECK_IS(api.cuMemFree_v2(pointers[--count]), CUDA_SUCCESS);
}

/* A debt is paid back even if it was forged: overwriting this word only makes the program wait. */
static bool is_debt(const unsigned char *region, size_t at) {
    return region == usage && at == offsetof(struct mizar_usage, cards[0].compute.paid_until);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A process that runs already meets each value in that word, and the sound ones in between. */
static void child_of_word(unsigned char *region, const unsigned char *sound, size_t at) {
    uint64_t now = now_ns();
    const uint64_t values[] = {0, 1, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 31, now,
                               now - 3600 * UINT64_C(1000000000), random_next(), random_next()};
    alarm(60);
    api_start();
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (is_debt(region, at) && values[i] > now) continue;
        memcpy(region + at, &values[i], sizeof values[i]);
        live_with_it();
        memcpy(region + at, sound + at, sizeof values[i]);
        live_with_it();
    }
}

static void restore(void) {
    memcpy(limits, sound_limits, sizeof sound_limits);
    memcpy(usage, sound_usage, sizeof sound_usage);
}

static void check_child(pid_t child, const char *what, size_t number) {
    int status;
    waitpid(child, &status, 0);
    if (status) fprintf(stderr, "%s %zu: status %d\n", what, number, status);
    CHECK(status == 0);
    restore();
}

static void fuzz_words(const char *what, unsigned char *region, const unsigned char *sound,
                       size_t from, size_t bytes, size_t step) {
    for (size_t at = from; at < from + bytes; at += 8 * step) {
        pid_t child = fork();
        if (!child) {
            child_of_word(region, sound, at);
            _exit(0);
        }
        check_child(child, what, at);
    }
}

/* All of the limits; of the usage its head, the card that is used, and the first two slots. */
static void every_word(size_t step) {
    size_t first = random_next() % step * 8;
    fuzz_words("limits", limits, sound_limits, first, 6144 - first, step);
    fuzz_words("usage", usage, sound_usage, first, 64, step);
    fuzz_words("card", usage, sound_usage, 4096 + first, 512 - first, step);
    fuzz_words("slots", usage, sound_usage, 12288 + first, 2048 - first, step);
}

/* ---- at random ---- */

static void one_round(bool during, unsigned seed, unsigned round) {
    state = (uint64_t)seed * 1000003 + round + 1;
    for (int k = 0; k < 5; k++) random_next();
    if (!during) damage(random_next() % 2 ? limits : usage, MIZAR_LIMITS_SIZE);
    pid_t child = fork();
    if (!child) {
        if (during) child_during(usage, limits);
        else child_before();
        _exit(0);
    }
    check_child(child, during ? "during" : "before", round);
}

int main(int count, char **arguments) {
    CHECK(count > 3);
    unsigned rounds = (unsigned)atoi(arguments[2]), seed = (unsigned)atoi(arguments[3]);
    bool before = !strcmp(arguments[1], "before"), words = !strcmp(arguments[1], "words");
    if (!before) api_load("dlsym");
    limits = map("limits", MIZAR_LIMITS_SIZE);
    usage = map("usage", MIZAR_USAGE_SIZE);
    memcpy(sound_limits, limits, sizeof sound_limits);
    memcpy(sound_usage, usage, sizeof sound_usage);
    state = seed + 1;
    if (words) every_word(rounds);
    for (unsigned i = 0; !words && i < rounds; i++) one_round(!before, seed, i);
    return 0;
}
