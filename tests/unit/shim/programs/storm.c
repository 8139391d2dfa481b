/*
 * Storms: `storm threads`, `storm processes`, `storm kills ROUNDS`, `storm crowd`, `storm imports`, `storm forks ROUNDS`.
 * 64 MiB are allowed on card 0.
 * The program counts its allocations independently of the shim, in shared memory. Their sum must never exceed
 * the limit, and once all processes have ended, the whole limit must be available.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "check.h"

#define LIMIT (64 * MIB)
#define POINTERS 24
#define HANGS_S 60

static struct shared {
    uint64_t granted;
    uint64_t over;
    uint64_t refused;
    uint64_t operations;
} *shared;

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Counted from after the allocation until before the free, so the count is never too high. */
static void count_granted(uint64_t bytes) {
    uint64_t now = __atomic_add_fetch(&shared->granted, bytes, __ATOMIC_SEQ_CST);
    if (now > LIMIT) __atomic_add_fetch(&shared->over, 1, __ATOMIC_RELAXED);
}

struct held {
    CUdeviceptr pointer;
    uint64_t bytes;
};

static void free_one(struct held *held) {
    __atomic_sub_fetch(&shared->granted, held->bytes, __ATOMIC_SEQ_CST);
    CHECK_IS(api.cuMemFree_v2(held->pointer), CUDA_SUCCESS);
    held->bytes = 0;
}

static void take_one(struct held *held, uint64_t bytes) {
    CUresult result = api.cuMemAlloc_v2(&held->pointer, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        __atomic_add_fetch(&shared->refused, 1, __ATOMIC_RELAXED);
        return;
    }
    CHECK_IS(result, CUDA_SUCCESS);
    held->bytes = bytes;
    count_granted(bytes);
}

static void operate(uint64_t seed, int operations) {
    struct held held[POINTERS] = {0};
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    api_use(0);
    for (int i = 0; i < operations; i++) {
        struct held *one = &held[random_next(&state) % POINTERS];
        uint64_t bytes = 512 * (1 + random_next(&state) % 8000);
        if (one->bytes)
            free_one(one);
        else
            take_one(one, bytes);
        __atomic_add_fetch(&shared->operations, 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < POINTERS; i++)
        if (held[i].bytes) free_one(&held[i]);
}

static int operations_each = 20000;

static void *thread(void *seed) {
    operate((uint64_t)(uintptr_t)seed, operations_each);
    return NULL;
}

static void threads(int count, uint64_t seed) {
    pthread_t ids[16];
    for (int i = 0; i < count; i++)
        CHECK(!pthread_create(&ids[i], NULL, thread, (void *)(uintptr_t)(seed + (uint64_t)i)));
    for (int i = 0; i < count; i++) pthread_join(ids[i], NULL);
}

/* A fresh process must be able to have everything: no byte was lost, and none is counted twice. */
static void all_is_back(void) {
    int status;
    pid_t child = fork();
    if (!child) {
        CUdeviceptr pointer;
        api_start();
        CHECK_IS(api.cuMemAlloc_v2(&pointer, LIMIT), CUDA_SUCCESS);
        CHECK_IS(api_used(0), LIMIT);
        CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
        CHECK_IS(api_used(0), 0);
        _exit(0);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK_IS(shared->over, 0);
}

static void storm_of_threads(void) {
    CHECK_IS(api.cuInit(0), CUDA_SUCCESS);
    threads(8, 1);
    CHECK_IS(shared->granted, 0);
    CHECK_IS(api_used(0), 0);
}

static pid_t start(uint64_t seed, int thread_count) {
    pid_t child = fork();
    if (child) return child;
    /* Workers go on until they are killed: also when the test itself is killed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK_IS(api.cuInit(0), CUDA_SUCCESS);
    threads(thread_count, seed);
    _exit(0);
}

/* The first three contexts measure what one costs: here, before other processes take memory. */
static void measure_contexts(void) {
    for (int i = 0; i < 3; i++) {
        int status;
        pid_t child = fork();
        if (!child) {
            api_start();
            _exit(0);
        }
        waitpid(child, &status, 0);
        CHECK(status == 0);
    }
}

static void storm_of_processes(void) {
    int status;
    for (uint64_t i = 0; i < 6; i++) start(i * 100, 2);
    while (wait(&status) > 0) CHECK(status == 0);
    CHECK_IS(shared->granted, 0);
    all_is_back();
}

/*
 * Kills at any instruction. shared->granted still includes what killed processes held, so only the
 * shim's own ledger can be checked meanwhile: it never exceeds the limit.
 */
static void storm_of_kills(int rounds) {
    enum { AT_ONCE = 3 };
    pid_t children[AT_ONCE] = {0};
    uint64_t state = 88172645463325252u, seed = 1;
    operations_each = 1 << 30;
    for (int i = 0; i < rounds; i++) {
        pid_t *one = &children[random_next(&state) % AT_ONCE];
        struct timespec moment = {0, (long)(random_next(&state) % 1500000)};
        if (*one) kill(*one, SIGKILL), waitpid(*one, NULL, 0);
        *one = start(seed += 10, 2);
        nanosleep(&moment, NULL);
        CHECK(api_used(0) <= LIMIT);
    }
    for (int i = 0; i < AT_ONCE; i++)
        if (children[i]) kill(children[i], SIGKILL), waitpid(children[i], NULL, 0);
    shared->over = 0; /* means nothing here: it includes memory of dead processes */
    all_is_back();
}

/* Reports the result of cuInit, then waits to be killed. */
static pid_t start_idle(void) {
    pid_t child = fork();
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CUresult result = api.cuInit(0);
    __atomic_add_fetch(result == CUDA_SUCCESS ? &shared->operations : &shared->refused, 1,
                       __ATOMIC_SEQ_CST);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_SYSTEM_NOT_READY);
    for (;;) pause();
}

static void wait_for_answers(uint64_t number) {
    const struct timespec moment = {0, 1000000};
    while (__atomic_load_n(&shared->operations, __ATOMIC_SEQ_CST) +
               __atomic_load_n(&shared->refused, __ATOMIC_SEQ_CST) < number)
        nanosleep(&moment, NULL);
}

/* More processes than slots: every slot gets used, and each process that dies frees one. */
static void storm_of_a_crowd(void) {
    enum { TOO_MANY = 10, CROWD = MIZAR_SLOT_MAX + TOO_MANY };
    static pid_t children[CROWD];
    for (unsigned i = 0; i < CROWD; i++) CHECK((children[i] = start_idle()) > 0);
    wait_for_answers(CROWD);
    CHECK_IS(shared->operations, MIZAR_SLOT_MAX);
    CHECK_IS(shared->refused, TOO_MANY);
    CHECK_IS(api_usage()->no_slot, TOO_MANY);
    for (unsigned i = 0; i < CROWD; i++) kill(children[i], SIGKILL);
    for (unsigned i = 0; i < CROWD; i++) waitpid(children[i], NULL, 0);
    all_is_back();
}

/* ---- imported memory, which any thread may map while another destroys it ---- */

static CUexternalMemory shown;

static void map_and_free(CUexternalMemory memory) {
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.bytes = 2 * MIB};
    CUdeviceptr pointer;
    CUresult result = api.cuExternalMemoryGetMappedBuffer(&pointer, memory, &whole);
    if (result != CUDA_ERROR_INVALID_HANDLE) CHECK_IS(result, CUDA_SUCCESS);
    if (result == CUDA_SUCCESS) CHECK_IS(api.cuMemFree_v2(pointer), CUDA_SUCCESS);
}

static void import_one(void) {
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC shape = {.type = 1, .bytes = 2 * MIB};
    CUexternalMemory made, other;
    CHECK_IS(api.cuImportExternalMemory(&made, &shape), CUDA_SUCCESS);
    other = __atomic_exchange_n(&shown, made, __ATOMIC_SEQ_CST);
    if (other) CHECK_IS(api.cuDestroyExternalMemory(other), CUDA_SUCCESS);
}

static void *import_and_map(void *unused) {
    api_use(0);
    for (int i = 0; i < operations_each; i++) {
        if (i % 4 == 0) import_one();
        map_and_free(__atomic_load_n(&shown, __ATOMIC_SEQ_CST));
        __atomic_add_fetch(&shared->operations, 1, __ATOMIC_RELAXED);
    }
    return unused;
}

static void storm_of_imports(void) {
    pthread_t ids[4];
    CHECK_IS(api.cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&ids[i], NULL, import_and_map, NULL));
    for (int i = 0; i < 4; i++) pthread_join(ids[i], NULL);
    CHECK_IS(api_used(0), 2 * MIB);
    CHECK_IS(api.cuDestroyExternalMemory(shown), CUDA_SUCCESS);
    CHECK_IS(api_used(0), 0);
}

/* ---- forks while threads are at it ---- */

static bool forked_enough;

/* Launches one of so many functions that the cost of some is always still to be learned. */
static void launch(uint64_t number) {
    CUfunction function = (CUfunction)(uintptr_t)(16 * (1 + number % 4096));
    CHECK_IS(api.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
}

static void use_all(void) {
    static __thread uint64_t state = 88172645463325252u;
    struct held held = {0};
    take_one(&held, 512 * (1 + random_next(&state) % 8000));
    launch(random_next(&state));
    CHECK(dlsym(RTLD_DEFAULT, "cuInit"));
    if (held.bytes) free_one(&held);
    __atomic_add_fetch(&shared->operations, 1, __ATOMIC_RELAXED);
}

static void *use_until_enough(void *unused) {
    (void)unused;
    api_use(0);
    while (!__atomic_load_n(&forked_enough, __ATOMIC_RELAXED)) use_all();
    return NULL;
}

/* Begins anew, as a process of its own, and dies with memory; killed if it ever hangs. */
static pid_t fork_user(void) {
    CUdeviceptr pointer;
    pid_t child = fork();
    if (child) return child;
    alarm(HANGS_S);
    api_start();
    for (int i = 0; i < 20; i++) use_all();
    api.cuMemAlloc_v2(&pointer, 4 * MIB);
    _exit(0);
}

static pid_t spawn_other(void) {
    char *const command[] = {"true", NULL};
    pid_t child = -1;
    CHECK(!posix_spawn(&child, "/bin/true", NULL, NULL, command, environ));
    return child;
}

/* Shares this process's memory (CLONE_VM) until it calls exec. */
static int be_other(void *unused) {
    char *const command[] = {"true", NULL};
    (void)unused;
    execve("/bin/true", command, environ);
    _exit(1);
}

static pid_t clone_other(void) {
    static char stack[64 << 10] __attribute__((aligned(16)));
    return clone(be_other, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
}

static void storm_of_forks(int rounds) {
    static pid_t (*const ways[])(void) = {fork_user, spawn_other, clone_other};
    pthread_t threads[4];
    api_start();
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, use_until_enough, NULL));
    for (int i = 0; i < rounds; i++) {
        int status;
        pid_t child = ways[i % 3]();
        CHECK(child > 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_IS(status, 0);
    }
    __atomic_store_n(&forked_enough, true, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK_IS(shared->granted, 0);
    all_is_back();
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    api_load("dlsym");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    measure_contexts();
    if (!strcmp(arguments[1], "threads")) storm_of_threads();
    if (!strcmp(arguments[1], "processes")) storm_of_processes();
    if (!strcmp(arguments[1], "crowd")) storm_of_a_crowd();
    if (!strcmp(arguments[1], "imports")) storm_of_imports();
    if (!strcmp(arguments[1], "kills")) storm_of_kills(count > 2 ? atoi(arguments[2]) : 200);
    if (!strcmp(arguments[1], "forks")) storm_of_forks(count > 2 ? atoi(arguments[2]) : 200);
    CHECK_IS(shared->over, 0);
    printf("%llu operations, %llu refused\n", (unsigned long long)shared->operations,
           (unsigned long long)shared->refused);
    return 0;
}
