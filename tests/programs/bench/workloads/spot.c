/*
 * An owner and a borrower of a card, for `make bench AREA=spot`. Each prints `ready` when it has a
 * context and memory.
 *     spot borrow              takes all free memory, and keeps two kernels of 2 ms in flight until it is
 *                              killed
 *     spot own WAKE RECORDS    sleeps with 1 GiB until it reads a byte from the FIFO WAKE, then works for a
 *                              second, appends a line to the file RECORDS, and sleeps again
 * A record: when the first kernel was launched, when it was done, and when the last one was (ns of
 * CLOCK_MONOTONIC); and the number of kernels of a millisecond that were done in the first second.
 */
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "spin.h"

enum { MS = 1000000, SECOND = 1000 * MS, THREADS = 1024, NO_TIMING = 2 };
enum { AHEAD = 2, LINE = 96 };
enum { OWNERS_NS = MS, BORROWERS_NS = 2 * MS };
#define MIB ((size_t)1 << 20)
#define OWNED (1024 * MIB)

static CUevent done[AHEAD];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static void start(void) {
    open_card();
    for (int i = 0; i < AHEAD; i++) DO(cuEventCreate, &done[i], NO_TIMING);
}

static void launch(uint64_t ns, CUevent event) {
    void *parameters[] = {&ns};
    DO(cuLaunchKernel, spin, (unsigned)multiprocessors, 1, 1, THREADS, 1, 1, 0, NULL, parameters,
       NULL);
    DO(cuEventRecord, event, NULL);
}

static void say_ready(void) {
    puts("ready");
    fflush(stdout);
}

/* Allocates smaller and smaller pieces, so that little is left. */
static void take_all_memory(void) {
    CUdeviceptr pointer;
    for (size_t bytes = 4096 * MIB; bytes >= 64 * MIB; bytes /= 2)
        while (granted(CALL(cuMemAlloc_v2, &pointer, bytes))) continue;
}

static void borrow(void) {
    take_all_memory();
    say_ready();
    for (unsigned turn = 0;; turn = (turn + 1) % AHEAD) {
        DO(cuEventSynchronize, done[turn]);
        launch(BORROWERS_NS, done[turn]);
    }
}

static void work(int records) {
    char line[LINE];
    unsigned kernels = 0;
    uint64_t woke = now_ns(), first = 0, now = woke;
    for (unsigned turn = 0; now - woke < SECOND; turn++) {
        CUevent event = done[turn % AHEAD];
        if (turn >= AHEAD) {
            DO(cuEventSynchronize, event);
            now = now_ns();
            if (!first) first = now;
            kernels += now - woke < SECOND;
        }
        launch(OWNERS_NS, event);
    }
    DO(cuCtxSynchronize);
    int length = snprintf(line, sizeof line, "%llu %llu %llu %u\n", (unsigned long long)woke,
                          (unsigned long long)first, (unsigned long long)now_ns(), kernels);
    CHECK(write(records, line, (size_t)length) == length);
}

static void own(const char *wake, const char *records) {
    CUdeviceptr pointer;
    char byte;
    DO(cuMemAlloc_v2, &pointer, OWNED);
    int orders = open(wake, O_RDWR), to = open(records, O_WRONLY | O_APPEND);
    CHECK(orders >= 0 && to >= 0);
    say_ready();
    while (read(orders, &byte, 1) == 1) work(to);
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    start();
    if (!strcmp(arguments[1], "borrow")) borrow();
    CHECK(count == 4 && !strcmp(arguments[1], "own"));
    own(arguments[2], arguments[3]);
}
