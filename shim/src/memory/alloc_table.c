#include "memory/alloc_table.h"

#include "base/sys.h"

#define BUCKET 4 /* entries of a bucket, which is a cache line */
#define BUSY UINT64_MAX /* an entry that is being filled or emptied */
#define FIRST_BITS 10   /* buckets in the first segment: 64 KiB */
#define GROWTH_BITS 2   /* each segment has four times the buckets of the one before */

#define CARD_BITS 5
#define KIND_BITS 4
#define STAND_IN_BITS 1
#define OWNER_BITS 10

_Static_assert(POOLS_MAX < 1 << OWNER_BITS && CONTEXTS_MAX < 1 << OWNER_BITS, "owners are numbers");

struct entry {
    uint64_t key; /* 0: free */
    uint64_t value;
};

/* One bucket. A segment is an array of them, whose length follows from the segment's number. */
struct segment {
    struct entry bucket[BUCKET];
};

static unsigned bits_of(unsigned number) {
    return FIRST_BITS + GROWTH_BITS * number;
}

static size_t size_of(unsigned number) {
    return sizeof(struct segment) << bits_of(number);
}

#define KIND_AT CARD_BITS
#define STAND_IN_AT (KIND_AT + KIND_BITS)
#define OWNER_AT (STAND_IN_AT + STAND_IN_BITS)
#define BYTES_AT (OWNER_AT + OWNER_BITS)

static uint64_t pack(struct alloc alloc) {
    return alloc.bytes << BYTES_AT | (uint64_t)alloc.owner << OWNER_AT |
           (uint64_t)alloc.stand_in << STAND_IN_AT | (uint64_t)alloc.kind << KIND_AT |
           (uint64_t)(alloc.card + 1);
}

static unsigned bits(uint64_t value, unsigned at, unsigned count) {
    return (unsigned)(value >> at) & ((1u << count) - 1);
}

static struct alloc unpack(uint64_t value) {
    return (struct alloc){
        .bytes = value >> BYTES_AT,
        .card = (int)bits(value, 0, CARD_BITS) - 1,
        .kind = (enum alloc_kind)bits(value, KIND_AT, KIND_BITS),
        .owner = bits(value, OWNER_AT, OWNER_BITS),
        .stand_in = bits(value, STAND_IN_AT, STAND_IN_BITS),
    };
}

/*
 * 32 KiB of addresses share 32 adjacent buckets, so that the entries of adjacent allocations are in
 * the cache: two neighbours of 4 KiB are in one bucket, and the next two in the next one. The
 * lowest bits distinguish handles; in addresses they are 0.
 */
static struct entry *bucket(struct segment *segment, unsigned number, uint64_t key) {
    uint64_t hash = (key >> 15 | key << 55) * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t near = (key >> 13 & 3) | (key >> 9 & 7) << 2;
    return segment[hash >> (64 - bits_of(number)) ^ near].bucket;
}

static struct segment *get(struct process *process, unsigned number) {
    return __atomic_load_n(&process->segments[number], __ATOMIC_ACQUIRE);
}

/*
 * The number of segments. Searches begin at the newest one, which has the most room and the newest
 * allocations.
 */
static unsigned segments_used(struct process *process) {
    return __atomic_load_n(&process->segments_used, __ATOMIC_ACQUIRE);
}

static void raise_used(struct process *process, unsigned used) {
    uint32_t before = segments_used(process);
    while (before < used &&
           !__atomic_compare_exchange_n(&process->segments_used, &before, used, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        continue;
}

/* Adds a segment. If several threads add the same one, the first succeeds and all use it. */
static bool grow(struct process *process, unsigned number) {
    struct segment *none = NULL, *made;
    if (number == SEGMENTS_MAX) return false;
    made = sys_table(size_of(number));
    if (!made) return false;
    if (!__atomic_compare_exchange_n(&process->segments[number], &none, made, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        sys_unmap(made, size_of(number));
    raise_used(process, number + 1);
    return true;
}

static bool swap(uint64_t *word, uint64_t from, uint64_t to) {
    return __atomic_load_n(word, __ATOMIC_RELAXED) == from &&
           __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static bool fill(struct entry *entries, uint64_t key, uint64_t value) {
    for (unsigned i = 0; i < BUCKET; i++) {
        if (!swap(&entries[i].key, 0, BUSY)) continue;
        __atomic_store_n(&entries[i].value, value, __ATOMIC_RELAXED);
        __atomic_store_n(&entries[i].key, key, __ATOMIC_RELEASE);
        return true;
    }
    return false;
}

void alloc_table_prefetch(struct process *process, uint64_t key) {
    unsigned used = segments_used(process);
    if (used) __builtin_prefetch(bucket(get(process, used - 1), used - 1, key), 1);
}

bool alloc_table_put(struct process *process, uint64_t key, struct alloc alloc) {
    for (;;) {
        unsigned used = segments_used(process);
        for (unsigned number = used; number--;)
            if (fill(bucket(get(process, number), number, key), key, pack(alloc))) return true;
        if (!grow(process, used)) return false;
    }
}

static struct entry *find(struct process *process, uint64_t key) {
    for (unsigned number = segments_used(process); number--;) {
        struct entry *entries = bucket(get(process, number), number, key);
        for (unsigned i = 0; i < BUCKET; i++)
            if (__atomic_load_n(&entries[i].key, __ATOMIC_ACQUIRE) == key) return &entries[i];
    }
    return NULL;
}

bool alloc_table_take(struct process *process, uint64_t key, struct alloc *alloc) {
    struct entry *entry = find(process, key);
    if (!entry || !swap(&entry->key, key, BUSY)) return false;
    *alloc = unpack(__atomic_load_n(&entry->value, __ATOMIC_RELAXED));
    __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
    return true;
}

bool alloc_table_find(struct process *process, uint64_t key, struct alloc *alloc) {
    struct entry *entry = find(process, key);
    if (!entry) return false;
    *alloc = unpack(__atomic_load_n(&entry->value, __ATOMIC_RELAXED));
    return true;
}

void alloc_table_sweep(struct process *process, bool (*match)(const struct alloc *alloc, void *context),
                       void (*taken)(uint64_t key, const struct alloc *alloc, void *context),
                       void *context) {
    for (unsigned number = segments_used(process); number--;) {
        struct entry *entry = get(process, number)->bucket;
        struct entry *end = entry + ((size_t)BUCKET << bits_of(number));
        for (; entry < end; entry++) {
            uint64_t key = __atomic_load_n(&entry->key, __ATOMIC_ACQUIRE);
            if (key == 0 || key == BUSY) continue;
            struct alloc alloc = unpack(__atomic_load_n(&entry->value, __ATOMIC_RELAXED));
            if (!match(&alloc, context) || !swap(&entry->key, key, BUSY)) continue;
            __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
            taken(key, &alloc, context);
        }
    }
}
