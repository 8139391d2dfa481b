#include "memory/pages.h"

#include "base/sys.h"

/*
 * Each page has a word, with its number and the number of its allocations, which change together.
 * The word is made after the page was charged, since threads that join the page rely on the charge.
 * If two threads enter the same new page at once, it may get two words; then it is charged twice,
 * and given back twice.
 */
#define COUNT_BITS 24
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)

#define BUCKET 8     /* words: a cache line */
#define FIRST_BITS 9 /* buckets in the first segment: 4096 pages */
#define GROWTH_BITS 2

static unsigned bits_of(unsigned number) {
    return FIRST_BITS + GROWTH_BITS * number;
}

static uint64_t *bucket(uint64_t *segment, unsigned number, uint64_t page) {
    return segment + BUCKET * (page * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits_of(number)));
}

static uint64_t *segment(struct process *process, unsigned number) {
    return __atomic_load_n(&process->page_segments[number], __ATOMIC_ACQUIRE);
}

static uint64_t *segment_or_new(struct process *process, unsigned number) {
    uint64_t *made = segment(process, number), *none = NULL;
    size_t bytes = BUCKET * sizeof *made << bits_of(number);
    if (made) return made;
    made = sys_table(bytes);
    if (!made) return NULL;
    if (__atomic_compare_exchange_n(&process->page_segments[number], &none, made, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return made;
    sys_unmap(made, bytes);
    return none;
}

static bool swap(uint64_t *word, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/*
 * Adds `by` to the count of a page, and sets *count to the new one. Returns false if the page has
 * no word.
 */
static bool change(struct process *process, uint64_t page, int64_t by, uint64_t *count) {
    for (unsigned number = 0; number < PAGE_SEGMENTS_MAX; number++) {
        uint64_t *words = segment(process, number);
        if (!words) return false;
        words = bucket(words, number, page);
        for (unsigned i = 0; i < BUCKET; i++) {
            uint64_t word = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
            if (word >> COUNT_BITS != page || !word) continue;
            *count = (word & COUNT_MASK) + (uint64_t)by;
            if (*count > COUNT_MASK) continue; /* the count is full */
            if (swap(&words[i], word, *count ? page << COUNT_BITS | *count : 0)) return true;
            i--; /* another thread changed it: try again */
        }
    }
    return false;
}

/* A page for which the table has no room is charged anew for each allocation: see pages_leave(). */
void pages_enter(struct process *process, uint64_t page) {
    for (unsigned number = 0; number < PAGE_SEGMENTS_MAX; number++) {
        uint64_t *words = segment_or_new(process, number);
        if (!words) return;
        words = bucket(words, number, page);
        for (unsigned i = 0; i < BUCKET; i++)
            if (!__atomic_load_n(&words[i], __ATOMIC_RELAXED) &&
                swap(&words[i], 0, page << COUNT_BITS | 1))
                return;
    }
}

bool pages_join(struct process *process, uint64_t page) {
    uint64_t count;
    return change(process, page, 1, &count);
}

bool pages_leave(struct process *process, uint64_t page) {
    uint64_t count;
    return !change(process, page, -1, &count) || count == 0;
}
