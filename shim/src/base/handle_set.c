#include "base/handle_set.h"

#include "base/numbers.h"
#include "base/sys.h"

#define BITS 16
#define MOST (1u << BITS)
#define GONE UINT64_MAX

/*
 * A hash table with open addressing. Removed entries become GONE, until all are cleared at once. A
 * forked child finds it empty.
 */
struct handle_set {
    struct {
        uint64_t key;
        const void *owner;
    } entries[MOST];
    uint32_t count;
};

static struct handle_set *known(struct handle_set **table) {
    return __atomic_load_n(table, __ATOMIC_ACQUIRE);
}

static struct handle_set *known_or_new(struct handle_set **table) {
    struct handle_set *set = known(table), *none = NULL;
    if (set) return set;
    set = sys_map_wiped(sizeof *set);
    if (!set) return NULL;
    if (__atomic_compare_exchange_n(table, &none, set, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return set;
    sys_unmap(set, sizeof *set);
    return none;
}

/* The index of the key's entry, or of a free one. */
static unsigned place_of(struct handle_set *set, uint64_t key) {
    unsigned first = (unsigned)scattered(key, BITS);
    for (unsigned i = 0; i < MOST; i++) {
        unsigned place = (first + i) % MOST;
        uint64_t found = __atomic_load_n(&set->entries[place].key, __ATOMIC_RELAXED);
        if (!found || found == key) return place;
    }
    return first; /* only if threads that clear the set at the same time have miscounted */
}

bool handle_set_has(struct handle_set **table, uint64_t key) {
    struct handle_set *set = known(table);
    return set && __atomic_load_n(&set->entries[place_of(set, key)].key, __ATOMIC_RELAXED) == key;
}

const void *handle_set_owner(struct handle_set **table, uint64_t key) {
    struct handle_set *set = known(table);
    unsigned place = set ? place_of(set, key) : 0;
    if (!set || __atomic_load_n(&set->entries[place].key, __ATOMIC_ACQUIRE) != key) return NULL;
    return __atomic_load_n(&set->entries[place].owner, __ATOMIC_RELAXED);
}

static void forget_all(struct handle_set *set) {
    for (unsigned i = 0; i < MOST; i++)
        __atomic_store_n(&set->entries[i].key, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&set->count, 0, __ATOMIC_RELAXED);
}

/* If two threads take the same entry, one key is not added, and counts as new once more. */
void handle_set_add(struct handle_set **table, uint64_t key, const void *owner) {
    struct handle_set *set = known_or_new(table);
    if (!set) return;
    if (!handle_set_has(table, key) && __atomic_add_fetch(&set->count, 1, __ATOMIC_RELAXED) > MOST / 2)
        forget_all(set);
    unsigned place = place_of(set, key);
    uint64_t free = 0;
    if (!__atomic_compare_exchange_n(&set->entries[place].key, &free, key, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED) &&
        free != key)
        return;
    __atomic_store_n(&set->entries[place].owner, owner, __ATOMIC_RELEASE);
}

void handle_set_remove(struct handle_set **table, uint64_t key) {
    struct handle_set *set = known(table);
    if (!set) return;
    uint64_t *place = &set->entries[place_of(set, key)].key;
    __atomic_compare_exchange_n(place, &key, GONE, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void handle_set_forget(struct handle_set **table, const void *owner) {
    struct handle_set *set = known(table);
    for (unsigned i = 0; set && i < MOST; i++)
        if (__atomic_load_n(&set->entries[i].key, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&set->entries[i].owner, __ATOMIC_RELAXED) == owner)
            __atomic_store_n(&set->entries[i].key, GONE, __ATOMIC_RELAXED);
}

void handle_set_forget_all(struct handle_set **table) {
    struct handle_set *set = known(table);
    if (set) forget_all(set);
}
