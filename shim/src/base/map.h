/* A small hash map for objects that are added and removed seldom. The caller must hold a lock. */
#ifndef MIZAR_MAP_H
#define MIZAR_MAP_H

#include <stdbool.h>
#include <stdint.h>

/* All zero when empty. */
struct map {
    uint64_t *cells;
    uint32_t bits, used;
};

/* The value of the key, which must not be UINT64_MAX; NULL if it is not there. */
void *map_get(const struct map *map, uint64_t key);

/* Adds or replaces the value of the key. Returns false if there is no memory. */
bool map_put(struct map *map, uint64_t key, void *value);

/* Removes the key, and returns its value; NULL if it was not there. */
void *map_remove(struct map *map, uint64_t key);

/* Empties the map, and passes every value to `taken`. */
void map_drain(struct map *map, void (*taken)(void *value, void *context), void *context);

#endif
