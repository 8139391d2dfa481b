/*
 * Keeps cards busy by streams of one kind until it is killed: `streams WAY`. Says `ready` on its
 * output when it has its contexts, and begins when it reads a line.
 *     legacy       the default stream
 *     per_thread   the thread's own default stream, by the twins of the entries
 *     blocking     a stream that waits for the default one
 *     many         16 streams of one thread, in turns
 *     cards        the default stream of each of two cards, a thread each
 *     in_turn      the same, by one thread
 *     together     one launch over two cards
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>

#include "driver.h"

enum { CARDS = 2, MANY = 16, NON_BLOCKING = 1 };
enum { BLOCKS = 216, NS = 100000, UNIT = 32 }; /* one wave of 100 us; as many between two waits */

static const char image[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                            ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";

/* A card, and the streams on it that are used in turns. */
struct card {
    CUcontext context;
    CUfunction spin;
    CUstream streams[MANY];
    unsigned count, next;
};

static struct card cards[CARDS];

static CUstream next_stream(struct card *card) {
    return card->streams[card->next++ % card->count];
}

static uint64_t ns = NS;
static void *parameters[] = {&ns};

static void launch(struct card *card) {
    DO(cuLaunchKernel, card->spin, BLOCKS, 1, 1, 1024, 1, 1, 0, next_stream(card), parameters, NULL);
}

static void launch_twin(struct card *card) {
    DO(cuLaunchKernel_ptsz, card->spin, BLOCKS, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL);
}

static void launch_together(struct card *first) {
    CUDA_LAUNCH_PARAMS list[CARDS];
    for (int i = 0; i < CARDS; i++)
        list[i] = (CUDA_LAUNCH_PARAMS){first[i].spin, BLOCKS, 1, 1, 1024, 1, 1, 0,
                                       next_stream(&first[i]), parameters};
    DO(cuLaunchCooperativeKernelMultiDevice, list, CARDS, 0);
}

static void launch_in_turn(struct card *first) {
    for (int i = 0; i < CARDS; i++) {
        DO(cuCtxSetCurrent, first[i].context);
        launch(&first[i]);
    }
}

static void wait_for(struct card *card) {
    for (unsigned i = 0; i < card->count; i++) DO(cuStreamSynchronize, card->streams[i]);
}

static void wait_for_twin(struct card *card) {
    (void)card;
    DO(cuStreamSynchronize_ptsz, NULL);
}

static void wait_for_both(struct card *first) {
    for (int i = 0; i < CARDS; i++) {
        DO(cuCtxSetCurrent, first[i].context);
        wait_for(&first[i]);
    }
}

static const struct way {
    const char *name;
    void (*launch)(struct card *card);
    void (*wait)(struct card *card);
    int cards, threads;
    unsigned created, flags; /* streams, and how */
} ways[] = {
    {"legacy", launch, wait_for, 1, 1, 0, 0},
    {"per_thread", launch_twin, wait_for_twin, 1, 1, 0, 0},
    {"blocking", launch, wait_for, 1, 1, 1, 0},
    {"many", launch, wait_for, 1, 1, MANY, NON_BLOCKING},
    {"cards", launch, wait_for, CARDS, CARDS, 0, 0},
    {"in_turn", launch_in_turn, wait_for_both, CARDS, 1, 0, 0},
    {"together", launch_together, wait_for_both, CARDS, 1, 1, NON_BLOCKING},
};

static const struct way *way;

static void open_card(struct card *card, CUdevice device) {
    CUmodule module;
    DO(cuDevicePrimaryCtxRetain, &card->context, device);
    DO(cuCtxSetCurrent, card->context);
    DO(cuModuleLoadData, &module, image);
    DO(cuModuleGetFunction, &card->spin, module, "spin_ns");
    for (unsigned i = 0; i < way->created; i++) DO(cuStreamCreate, &card->streams[i], way->flags);
    card->count = way->created ? way->created : 1;
}

static void *work(void *first) {
    struct card *card = first;
    DO(cuCtxSetCurrent, card->context);
    for (;;) {
        for (int i = 0; i < UNIT; i++) way->launch(card);
        way->wait(card);
    }
}

static const struct way *way_of(const char *name) {
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!strcmp(ways[i].name, name)) return &ways[i];
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[CARDS];
    CHECK(count > 1 && (way = way_of(arguments[1])));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_driver();
    DO(cuInit, 0);
    for (int i = 0; i < way->cards; i++) open_card(&cards[i], i);
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    for (int i = 0; i < way->threads; i++) CHECK(!pthread_create(&threads[i], NULL, work, &cards[i]));
    pthread_join(threads[0], NULL);
}
