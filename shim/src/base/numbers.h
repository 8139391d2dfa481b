/* Arithmetic helpers: a hash, minimum and maximum of 64-bit integers. */
#ifndef MIZAR_NUMBERS_H
#define MIZAR_NUMBERS_H

#include <stdint.h>

/*
 * A hash of the value with that many bits (1 to 64). Its highest bits depend on most bits of the
 * value.
 */
static inline uint64_t scattered(uint64_t value, int bits) {
    return value * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits);
}

static inline uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#endif
