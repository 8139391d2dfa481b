#include "lookup/hooks.h"

#include <dlfcn.h>
#include <stdbool.h>

#include "base/text.h"

#define TABLE_SIZE 1024 /* a power of two, well above the number of hooks */

_Static_assert(HOOK_COUNT * 2 < TABLE_SIZE, "the name tables are getting full");

const struct hook hooks[HOOK_COUNT] = {
#define HOOK(library, symbol, base, version, stream) \
    [H_##symbol] = {#symbol, base, (void *)&symbol, version, LIBRARY_##library, STREAM_##stream},
#define NEED(library, symbol) [H_##symbol] = {#symbol, "", NULL, 0, LIBRARY_##library, STREAM_ANY},
#include "lookup/hooks_generated.def"
};

/*
 * Filled at the first use, by any number of threads, which all write the same values. Entries: id +
 * 1.
 */
static uint16_t by_symbol[TABLE_SIZE], by_base[TABLE_SIZE], next_of_base[HOOK_COUNT];
static bool ready;

static unsigned hash(const char *name) {
    uint32_t value = 2166136261u;
    for (; *name; name++) value = (value ^ (unsigned char)*name) * 16777619u;
    return (value ^ value >> 15) & (TABLE_SIZE - 1);
}

typedef const char *name_of(const struct hook *hook);

static const char *symbol_of(const struct hook *hook) {
    return hook->symbol;
}

static const char *base_of(const struct hook *hook) {
    return hook->base;
}

/* The entry of `name` in the table, or the free entry for it. */
static uint16_t *place(uint16_t *table, const char *name, name_of *get) {
    for (unsigned i = hash(name);; i = (i + 1) & (TABLE_SIZE - 1)) {
        uint16_t entry = __atomic_load_n(&table[i], __ATOMIC_RELAXED);
        if (!entry || text_is(get(&hooks[entry - 1]), name)) return &table[i];
    }
}

static void publish(uint16_t *table, const uint16_t *made) {
    for (int i = 0; i < TABLE_SIZE; i++) __atomic_store_n(&table[i], made[i], __ATOMIC_RELAXED);
}

/*
 * Goes backwards, so that the first hook of a name remains in the table, and links to the next one
 * of its base.
 */
static void make_tables(void) {
    uint16_t symbols[TABLE_SIZE] = {0}, bases[TABLE_SIZE] = {0};
    for (int id = HOOK_COUNT - 1; id >= 0; id--) {
        if (!hooks[id].wrapper) continue;
        *place(symbols, hooks[id].symbol, symbol_of) = (uint16_t)(id + 1);
        if (!*hooks[id].base) continue;
        uint16_t *first = place(bases, hooks[id].base, base_of);
        __atomic_store_n(&next_of_base[id], *first, __ATOMIC_RELAXED);
        *first = (uint16_t)(id + 1);
    }
    publish(by_symbol, symbols);
    publish(by_base, bases);
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
}

static int find(uint16_t *table, const char *name, name_of *get) {
    if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) make_tables();
    return __atomic_load_n(place(table, name, get), __ATOMIC_RELAXED) - 1;
}

int hooks_by_symbol(const char *symbol) {
    return find(by_symbol, symbol, symbol_of);
}

int hooks_by_base(const char *base) {
    return *base ? find(by_base, base, base_of) : HOOK_NONE;
}

int hooks_next_of_base(int hook) {
    return __atomic_load_n(&next_of_base[hook], __ATOMIC_RELAXED) - 1;
}
