#include "allocs.h"

#include "sys.h"

#define BUCKET 8
#define BUSY UINT64_MAX /* an entry that is being filled or emptied */
#define FIRST_BITS 9    /* buckets in the first segment: 64 KiB */
#define GROWTH_BITS 2   /* each segment has four times the buckets of the one before */

#define CARD_BITS 5
#define KIND_BITS 5

struct entry {
    uint64_t key; /* 0: free */
    uint64_t value;
};

/* One bucket; a segment is as many of them in a row as its number says. */
struct segment {
    struct entry bucket[BUCKET];
};

static unsigned bits_of(unsigned number) {
    return FIRST_BITS + GROWTH_BITS * number;
}

static size_t size_of(unsigned number) {
    return sizeof(struct segment) << bits_of(number);
}

static uint64_t pack(struct alloc alloc) {
    return alloc.bytes << (CARD_BITS + KIND_BITS) | (uint64_t)alloc.kind << CARD_BITS |
           (uint64_t)(alloc.card + 1);
}

static struct alloc unpack(uint64_t value) {
    return (struct alloc){
        .bytes = value >> (CARD_BITS + KIND_BITS),
        .card = (int)(value & ((1u << CARD_BITS) - 1)) - 1,
        .kind = (unsigned)(value >> CARD_BITS) & ((1u << KIND_BITS) - 1),
    };
}

static struct entry *bucket(struct segment *segment, unsigned number, uint64_t key) {
    uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15);
    return segment[hash >> (64 - bits_of(number))].bucket;
}

static struct segment *get(struct process *process, unsigned number) {
    return __atomic_load_n(&process->segments[number], __ATOMIC_ACQUIRE);
}

/* Of several threads that add the same segment, one wins. */
static struct segment *grow(struct process *process, unsigned number) {
    struct segment *first = NULL, *made;
    made = sys_map(size_of(number), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (!made) return NULL;
    if (__atomic_compare_exchange_n(&process->segments[number], &first, made, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return made;
    sys_unmap(made, size_of(number));
    return first;
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

bool allocs_put(struct process *process, uint64_t key, struct alloc alloc) {
    for (unsigned number = 0; number < SEGMENTS_MAX; number++) {
        struct segment *segment = get(process, number);
        if (!segment) segment = grow(process, number);
        if (!segment) return false;
        if (fill(bucket(segment, number, key), key, pack(alloc))) return true;
    }
    return false;
}

static struct entry *find(struct process *process, uint64_t key) {
    for (unsigned number = 0; number < SEGMENTS_MAX; number++) {
        struct segment *segment = get(process, number);
        if (!segment) return NULL;
        struct entry *entries = bucket(segment, number, key);
        for (unsigned i = 0; i < BUCKET; i++)
            if (__atomic_load_n(&entries[i].key, __ATOMIC_ACQUIRE) == key) return &entries[i];
    }
    return NULL;
}

bool allocs_take(struct process *process, uint64_t key, struct alloc *alloc) {
    struct entry *entry = find(process, key);
    if (!entry || !swap(&entry->key, key, BUSY)) return false;
    *alloc = unpack(__atomic_load_n(&entry->value, __ATOMIC_RELAXED));
    __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
    return true;
}

bool allocs_find(struct process *process, uint64_t key, struct alloc *alloc) {
    struct entry *entry = find(process, key);
    if (!entry) return false;
    *alloc = unpack(__atomic_load_n(&entry->value, __ATOMIC_RELAXED));
    return true;
}
