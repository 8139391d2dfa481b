/*
 * Damages the regions and looks what a program can get: `fuzz before|during ROUNDS SEED`. Whatever
 * the files say, it must neither crash, nor hang, nor get more than the 64 MiB of the sound limits.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
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
    alarm(20);
    api_load("dlsym"); /* here, so that the child opens the files itself */
    if (api.cuInit(0) != CUDA_SUCCESS) return;
    fake_use(0);
    CHECK(grab(0) <= LIMIT);
}

static void child_during(unsigned char *usage, unsigned char *limits) {
    CUdeviceptr pointers[8];
    int live = 0;
    alarm(20);
    api_start();
    for (int i = 0; i < 30; i++) {
        if (random_next() % 3 == 0) {
            if (random_next() % 4)
                damage(usage, MIZAR_USAGE_SIZE);
            else
                damage(limits, MIZAR_LIMITS_SIZE);
        }
        if (live < 8 && api.cuMemAlloc_v2(&pointers[live], 2 * CHUNK) == CUDA_SUCCESS) live++;
        if (live && random_next() % 2) CHECK_IS(api.cuMemFree_v2(pointers[--live]), CUDA_SUCCESS);
    }
    CHECK(grab((uint64_t)live * 2 * CHUNK) <= LIMIT);
}

int main(int count, char **arguments) {
    static unsigned char sound_limits[MIZAR_LIMITS_SIZE], sound_usage[MIZAR_USAGE_SIZE];
    CHECK(count > 3);
    bool during = !strcmp(arguments[1], "during");
    if (during) api_load("dlsym");
    unsigned char *limits = map("limits", MIZAR_LIMITS_SIZE);
    unsigned char *usage = map("usage", MIZAR_USAGE_SIZE);
    memcpy(sound_limits, limits, sizeof sound_limits);
    memcpy(sound_usage, usage, sizeof sound_usage);
    for (int i = 0; i < atoi(arguments[2]); i++) {
        int status;
        state = strtoull(arguments[3], NULL, 10) * 1000003 + (uint64_t)i + 1;
        for (int k = 0; k < 5; k++) random_next();
        if (!during) damage(random_next() % 2 ? limits : usage, MIZAR_LIMITS_SIZE);
        pid_t child = fork();
        if (!child) {
            if (during) child_during(usage, limits); else child_before();
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (status) fprintf(stderr, "round %d of seed %s: status %d\n", i, arguments[3], status);
        CHECK(status == 0);
        memcpy(limits, sound_limits, sizeof sound_limits);
        memcpy(usage, sound_usage, sizeof sound_usage);
    }
    return 0;
}
