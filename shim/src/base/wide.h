/* A 128-bit compare-and-swap, inline on both architectures to avoid a dependency on libatomic. */
#ifndef MIZAR_WIDE_H
#define MIZAR_WIDE_H

#include <stdbool.h>
#include <stdint.h>

struct wide {
    uint64_t lo, hi;
};

#if defined(__x86_64__)
/* With -mcx16, the __sync builtin is `lock cmpxchg16b`; sanitizers know it too. */
static inline bool wide_swap(void *word, struct wide expected, struct wide desired) {
    unsigned __int128 old = ((unsigned __int128)expected.hi << 64) | expected.lo;
    unsigned __int128 new = ((unsigned __int128)desired.hi << 64) | desired.lo;
    return __sync_bool_compare_and_swap((unsigned __int128 *)word, old, new);
}
#elif defined(__aarch64__)
static inline bool wide_swap(void *word, struct wide expected, struct wide desired) {
    uint64_t lo, hi;
    uint32_t failed;
    do {
        __asm__ volatile("ldaxp %0, %1, [%2]" : "=&r"(lo), "=&r"(hi) : "r"(word) : "memory");
        bool same = lo == expected.lo && hi == expected.hi;
        struct wide put = same ? desired : (struct wide){lo, hi};
        __asm__ volatile("stlxp %w0, %1, %2, [%3]"
                         : "=&r"(failed)
                         : "r"(put.lo), "r"(put.hi), "r"(word)
                         : "memory");
        if (!failed) return same;
    } while (true);
}
#else
#error "no 128-bit compare-and-swap for this architecture"
#endif

/*
 * Reads both halves as of one instant. Every change must change `lo`, which therefore contains a
 * sequence number: if `lo` is the same before and after `hi` was read, they belong together.
 */
static inline struct wide wide_load(const void *word) {
    const uint64_t *half = word;
    struct wide view;
    uint64_t again;
    do {
        view.lo = __atomic_load_n(&half[0], __ATOMIC_ACQUIRE);
        view.hi = __atomic_load_n(&half[1], __ATOMIC_ACQUIRE);
        again = __atomic_load_n(&half[0], __ATOMIC_RELAXED);
    } while (__builtin_expect(again != view.lo, 0));
    return view;
}

#endif
