#include "hooks.h"

#include <dlfcn.h>
#include <stdbool.h>

#include "text.h"

#define TABLE_SIZE 1024 /* a power of two, well above the number of hooks */

_Static_assert(HOOK_COUNT * 2 < TABLE_SIZE, "the name tables are getting full");

const struct hook hooks[HOOK_COUNT] = {
#define HOOK(library, symbol, base, version, stream) \
    [H_##symbol] = {#symbol, base, (void *)&symbol, version, LIBRARY_##library, STREAM_##stream},
#define ALIAS(library, symbol, base, version, stream)                              \
    [H_##symbol##_from_##version] = {#symbol, base, (void *)&symbol, version, LIBRARY_##library, \
                                     STREAM_##stream},
#define NEED(library, symbol) [H_##symbol] = {#symbol, "", NULL, 0, LIBRARY_##library, STREAM_ANY},
#include "hooks.def"
};

/* Made on first use, by whoever comes: every thread writes the same numbers. Entries are id + 1. */
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

/* Where `name` is in the table, or the free place where it belongs. */
static uint16_t *place(uint16_t *table, const char *name, name_of *get) {
    for (unsigned i = hash(name);; i = (i + 1) & (TABLE_SIZE - 1)) {
        uint16_t entry = __atomic_load_n(&table[i], __ATOMIC_RELAXED);
        if (!entry || text_is(get(&hooks[entry - 1]), name)) return &table[i];
    }
}

static void store(uint16_t *entry, int value) {
    __atomic_store_n(entry, (uint16_t)value, __ATOMIC_RELAXED);
}

/* The first of a name stays. */
static void enter(uint16_t *table, const char *name, name_of *get, int id) {
    uint16_t *entry = place(table, name, get);
    if (!__atomic_load_n(entry, __ATOMIC_RELAXED)) store(entry, id + 1);
}

/* Each hook leads to the next one of its base. */
static void chain_base(int id) {
    for (int other = id + 1; other < HOOK_COUNT; other++)
        if (text_is(hooks[other].base, hooks[id].base)) {
            store(&next_of_base[id], other + 1);
            return;
        }
}

static void make_tables(void) {
    for (int id = 0; id < HOOK_COUNT; id++) {
        if (!hooks[id].wrapper) continue;
        enter(by_symbol, hooks[id].symbol, symbol_of, id);
        if (!*hooks[id].base) continue;
        chain_base(id);
        enter(by_base, hooks[id].base, base_of, id);
    }
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
