/* Atomic access to words that several processes or threads share. */
#ifndef MIZAR_ATOMICS_H
#define MIZAR_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

/* For words of any width. Only the last two order other accesses. */
#define load_relaxed(word) __atomic_load_n(word, __ATOMIC_RELAXED)
#define load_acquire(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
#define load_seq_cst(word) __atomic_load_n(word, __ATOMIC_SEQ_CST)

static inline void store_relaxed(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/*
 * Sets the word to `value` if it equals *seen. Otherwise sets *seen to the word and returns false.
 */
static inline bool swap_relaxed(uint64_t *word, uint64_t *seen, uint64_t value) {
    return __atomic_compare_exchange_n(word, seen, value, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

#endif
