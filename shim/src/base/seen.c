#include "base/seen.h"

#include "base/numbers.h"
#include "base/sys.h"

#define BITS 16
#define MOST (1u << BITS)
#define GONE UINT64_MAX

/* By open addressing: entries come and turn into GONE, until all go at once. Wiped in a forked child. */
struct seen {
    struct {
        uint64_t key;
        const void *owner;
    } entries[MOST];
    uint32_t count;
};

static struct seen *known(struct seen **table) {
    return __atomic_load_n(table, __ATOMIC_ACQUIRE);
}

static struct seen *known_or_new(struct seen **table) {
    struct seen *seen = known(table), *none = NULL;
    if (seen) return seen;
    seen = sys_map_wiped(sizeof *seen);
    if (!seen) return NULL;
    if (__atomic_compare_exchange_n(table, &none, seen, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return seen;
    sys_unmap(seen, sizeof *seen);
    return none;
}

/* The number of its entry, or of a free one. */
static unsigned place_of(struct seen *seen, uint64_t key) {
    unsigned first = (unsigned)scattered(key, BITS);
    for (unsigned i = 0; i < MOST; i++) {
        unsigned place = (first + i) % MOST;
        uint64_t found = __atomic_load_n(&seen->entries[place].key, __ATOMIC_RELAXED);
        if (!found || found == key) return place;
    }
    return first; /* threads that all forget at once may miscount */
}

bool seen_has(struct seen **table, uint64_t key) {
    struct seen *seen = known(table);
    return seen && __atomic_load_n(&seen->entries[place_of(seen, key)].key, __ATOMIC_RELAXED) == key;
}

const void *seen_owner(struct seen **table, uint64_t key) {
    struct seen *seen = known(table);
    unsigned place = seen ? place_of(seen, key) : 0;
    if (!seen || __atomic_load_n(&seen->entries[place].key, __ATOMIC_ACQUIRE) != key) return NULL;
    return __atomic_load_n(&seen->entries[place].owner, __ATOMIC_RELAXED);
}

static void forget_all(struct seen *seen) {
    for (unsigned i = 0; i < MOST; i++)
        __atomic_store_n(&seen->entries[i].key, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&seen->count, 0, __ATOMIC_RELAXED);
}

/* Of two threads that take the same place one remembers nothing: it meets it again. */
void seen_add(struct seen **table, uint64_t key, const void *owner) {
    struct seen *seen = known_or_new(table);
    if (!seen) return;
    if (!seen_has(table, key) && __atomic_add_fetch(&seen->count, 1, __ATOMIC_RELAXED) > MOST / 2)
        forget_all(seen);
    unsigned place = place_of(seen, key);
    uint64_t free = 0;
    if (!__atomic_compare_exchange_n(&seen->entries[place].key, &free, key, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED) &&
        free != key)
        return;
    __atomic_store_n(&seen->entries[place].owner, owner, __ATOMIC_RELEASE);
}

void seen_remove(struct seen **table, uint64_t key) {
    struct seen *seen = known(table);
    if (!seen) return;
    uint64_t *place = &seen->entries[place_of(seen, key)].key;
    __atomic_compare_exchange_n(place, &key, GONE, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void seen_forget(struct seen **table, const void *owner) {
    struct seen *seen = known(table);
    for (unsigned i = 0; seen && i < MOST; i++)
        if (__atomic_load_n(&seen->entries[i].key, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&seen->entries[i].owner, __ATOMIC_RELAXED) == owner)
            __atomic_store_n(&seen->entries[i].key, GONE, __ATOMIC_RELAXED);
}

void seen_forget_all(struct seen **table) {
    struct seen *seen = known(table);
    if (seen) forget_all(seen);
}
