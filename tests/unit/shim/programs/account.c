/*
 * The ledger and the allocation table against models, alone and under threads; built plain and with
 * the sanitizers. `account SEED`
 */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "memory/alloc_table.h"
#include "memory/pages.h"
#include "region/memory_ledger.h"

#define SLOTS 5
#define THREADS 4
#define LIMIT 1000000u
#define OWNER_MAX 1023u /* OWNER_BITS in alloc_table.c */

static struct mizar_usage *usage;

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- the ledger ---- */

struct model {
    uint64_t held[SLOTS];
    uint64_t total;
};

static void compare(const struct model *model, unsigned card) {
    CHECK_IS(ledger_view(usage, card).total, model->total);
    for (unsigned slot = 0; slot < SLOTS; slot++)
        CHECK_IS(ledger_slot_bytes(usage, card, slot * 200), model->held[slot]);
}

static void step(struct model *model, unsigned card, uint64_t *state) {
    unsigned slot = (unsigned)(random_next(state) % SLOTS);
    uint64_t bytes = random_next(state) % (LIMIT / 4);
    if (random_next(state) % 2) {
        bool allowed = model->total + bytes <= LIMIT;
        CHECK_IS(ledger_take(usage, card, slot * 200, bytes, LIMIT), allowed);
        if (allowed) model->held[slot] += bytes, model->total += bytes;
    } else {
        if (bytes > model->held[slot]) bytes = model->held[slot]; /* never more than it holds */
        ledger_give(usage, card, slot * 200, bytes);
        model->held[slot] -= bytes, model->total -= bytes;
    }
}

static void gate_like_model(uint64_t seed) {
    struct model models[2] = {0};
    for (int i = 0; i < 20000; i++) {
        unsigned card = (unsigned)(random_next(&seed) % 2);
        step(&models[card], card, &seed);
        compare(&models[card], card);
    }
}

static void gate_at_its_ends(void) {
    CHECK(ledger_take(usage, 3, 1023, MIZAR_BYTES_MAX, LEDGER_NO_LIMIT));
    CHECK(!ledger_take(usage, 3, 0, 1, LEDGER_NO_LIMIT));
    CHECK(!ledger_take(usage, 3, 1023, UINT64_MAX, LEDGER_NO_LIMIT));
    CHECK_IS(ledger_view(usage, 3).total, MIZAR_BYTES_MAX);
    CHECK_IS(ledger_slot_bytes(usage, 3, 1023), MIZAR_BYTES_MAX);
    ledger_give(usage, 3, 1023, MIZAR_BYTES_MAX - 1);
    CHECK_IS(ledger_view(usage, 3).total, 1);
    ledger_give(usage, 3, 1023, 100);
    CHECK_IS(ledger_view(usage, 3).total, 0);
}

/* The sequence number runs over; a slot that was never recorded must not be mistaken for one. */
static void gate_wraps(void) {
    usage->cards[4].ledger.lo = UINT32_MAX - 3;
    usage->cards[4].ledger.hi = 0;
    usage->slots[0].held[4].seq = UINT32_MAX - 3;
    for (unsigned i = 0; i < 8; i++) {
        CHECK(ledger_take(usage, 4, i, 10 + i, LIMIT));
        CHECK(ledger_take(usage, 4, i, 1, LIMIT));
    }
    for (unsigned i = 0; i < 8; i++) CHECK_IS(ledger_slot_bytes(usage, 4, i), 11 + i);
}

static void *gate_thread(void *seed) {
    uint64_t state = (uint64_t)(uintptr_t)seed * 7919 + 1, held = 0;
    unsigned slot = (unsigned)(uintptr_t)seed / 2; /* two threads share each slot */
    for (int i = 0; i < 20000; i++) {
        uint64_t bytes = random_next(&state) % (LIMIT / 3);
        if (held) {
            ledger_give(usage, 5, slot, held);
            held = 0;
        } else if (ledger_take(usage, 5, slot, bytes, LIMIT)) {
            held = bytes;
        }
        if (ledger_view(usage, 5).total > LIMIT) abort();
    }
    ledger_give(usage, 5, slot, held);
    return NULL;
}

/* ---- the table ---- */

static struct process *table;

static void *table_thread(void *seed) {
    enum { KEYS = 3000 };
    uint64_t base = ((uint64_t)(uintptr_t)seed + 1) << 32;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 1; i <= KEYS; i++)
            if (!alloc_table_put(table, base + i * 512, (struct alloc){.bytes = i, .card = 3})) abort();
        for (uint64_t i = KEYS; i; i--) {
            struct alloc alloc;
            if (!alloc_table_find(table, base + i * 512, &alloc) || alloc.bytes != i) abort();
            if (!alloc_table_take(table, base + i * 512, &alloc) || alloc.bytes != i) abort();
            if (alloc_table_take(table, base + i * 512, &alloc)) abort();
        }
    }
    return NULL;
}

static uint64_t winners;

/* All threads take the same keys: each key has one winner. */
static void *rival_thread(void *unused) {
    struct alloc alloc;
    (void)unused;
    for (uint64_t key = 1; key <= 5000; key++)
        if (alloc_table_take(table, key << 20, &alloc)) __atomic_add_fetch(&winners, 1, __ATOMIC_RELAXED);
    return NULL;
}

static uint64_t charged_pages;

/* However the threads race, every page that was charged is given back. */
static void *page_thread(void *seed) {
    static const int rounds = 4000;
    uint64_t state = (uint64_t)(uintptr_t)seed + 1, entered[64];
    unsigned depth = 0;
    for (int i = 0; i < rounds; i++) {
        if (depth < 64 && random_next(&state) % 2) {
            entered[depth] = 1 + random_next(&state) % (i % 100 ? 40 : 30000);
            if (!pages_join(table, entered[depth])) {
                pages_enter(table, entered[depth]);
                __atomic_add_fetch(&charged_pages, 1, __ATOMIC_RELAXED);
            }
            depth++;
        } else if (depth && pages_leave(table, entered[--depth])) {
            __atomic_sub_fetch(&charged_pages, 1, __ATOMIC_RELAXED);
        }
    }
    while (depth)
        if (pages_leave(table, entered[--depth]))
            __atomic_sub_fetch(&charged_pages, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void pages_alone(void) {
    for (uint64_t page = 1; page <= 20000; page++) pages_enter(table, page);
    for (uint64_t page = 1; page <= 20000; page++) CHECK(pages_join(table, page));
    for (uint64_t page = 1; page <= 20000; page++) CHECK(!pages_leave(table, page));
    for (uint64_t page = 1; page <= 20000; page++) CHECK(pages_leave(table, page));
}

static void run_threads(void *(*function)(void *)) {
    pthread_t ids[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&ids[i], NULL, function, (void *)i));
    for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
}

static void table_extremes(void) {
    struct alloc alloc = {.bytes = MIZAR_BYTES_MAX, .card = 15, .kind = 15,
                          .owner = OWNER_MAX, .stand_in = true};
    CHECK(alloc_table_put(table, UINT64_MAX - 1, alloc));
    CHECK(alloc_table_take(table, UINT64_MAX - 1, &alloc));
    CHECK_IS(alloc.bytes, MIZAR_BYTES_MAX);
    CHECK_IS(alloc.card, 15);
    CHECK_IS(alloc.kind, 15);
    CHECK_IS(alloc.owner, OWNER_MAX);
    CHECK_IS(alloc.stand_in, true);
}

/* Handles lie close together, unlike addresses: the table must not fill up for that. */
static void table_of_handles(void) {
    struct alloc alloc = {.bytes = 1, .kind = ALLOC_ARRAY};
    uint64_t first = alloc_key(ALLOC_ARRAY, (void *)(uintptr_t)0x7f0000001000);
    for (uint64_t i = 0; i < 30000; i++) CHECK(alloc_table_put(table, first + i * 16, alloc));
    CHECK(table->segments_used <= 5);
    for (uint64_t i = 0; i < 30000; i++) CHECK(alloc_table_take(table, first + i * 16, &alloc));
}

int main(int count, char **arguments) {
    uint64_t seed = count > 1 ? strtoull(arguments[1], NULL, 10) : 1;
    usage = aligned_alloc(4096, (sizeof *usage + 4095) / 4096 * 4096);
    memset(usage, 0, sizeof *usage);
    table = process_state_new();
    gate_like_model(seed * 2654435761u + 1);
    gate_at_its_ends();
    gate_wraps();
    run_threads(gate_thread);
    CHECK_IS(ledger_view(usage, 5).total, 0);
    run_threads(table_thread);
    for (uint64_t key = 1; key <= 5000; key++)
        CHECK(alloc_table_put(table, key << 20, (struct alloc){.bytes = 1}));
    run_threads(rival_thread);
    CHECK_IS(winners, 5000);
    table_extremes();
    table_of_handles();
    pages_alone();
    run_threads(page_thread);
    CHECK_IS(charged_pages, 0);
    return 0;
}
