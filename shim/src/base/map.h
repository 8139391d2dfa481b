/* A small hash map for objects that come and go seldom. The caller holds a lock. */
#ifndef MIZAR_MAP_H
#define MIZAR_MAP_H

#include <stdbool.h>
#include <stdint.h>

/* Of few or many objects; all zero when it is empty. */
struct map {
    uint64_t *cells;
    uint32_t bits, used;
};

/* NULL when the key is not there. */
void *map_get(const struct map *map, uint64_t key);

/* False when there is no memory. Replaces what is there. */
bool map_put(struct map *map, uint64_t key, void *value);

/* Returns what was there, or NULL. */
void *map_remove(struct map *map, uint64_t key);

/* Hands every value to `taken`, and empties the map. */
void map_drain(struct map *map, void (*taken)(void *value, void *context), void *context);

#endif
