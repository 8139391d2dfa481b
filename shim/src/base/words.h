/* Words that several processes or threads read and write, each valid by itself. */
#ifndef MIZAR_WORDS_H
#define MIZAR_WORDS_H

#include <stdbool.h>
#include <stdint.h>

static inline uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* False: the word is not *seen, which now says what it is. */
static inline bool swap(uint64_t *word, uint64_t *seen, uint64_t value) {
    return __atomic_compare_exchange_n(word, seen, value, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

#endif
