#include "base/map.h"

#include <stdlib.h>

#define FIRST_BITS 6

/* Pairs of cells: key + 1 (0: free), value. Linear probing; a removal moves later entries back. */

static uint32_t home(const struct map *map, uint64_t key) {
    return (uint32_t)((key + 1) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - map->bits));
}

static uint32_t next(const struct map *map, uint32_t cell) {
    return (cell + 1) & ((1u << map->bits) - 1);
}

static uint32_t find(const struct map *map, uint64_t key) {
    uint32_t cell = home(map, key);
    while (map->cells[2 * cell] && map->cells[2 * cell] != key + 1) cell = next(map, cell);
    return cell;
}

void *map_get(const struct map *map, uint64_t key) {
    return map->cells ? (void *)map->cells[2 * find(map, key) + 1] : NULL;
}

static bool grow(struct map *map) {
    struct map old = *map;
    map->bits = old.cells ? old.bits + 1 : FIRST_BITS;
    map->cells = calloc(2u << map->bits, sizeof *map->cells);
    if (!map->cells) {
        *map = old;
        return false;
    }
    map->used = 0;
    for (uint32_t i = 0; old.cells && i < 1u << old.bits; i++)
        if (old.cells[2 * i]) map_put(map, old.cells[2 * i] - 1, (void *)old.cells[2 * i + 1]);
    free(old.cells);
    return true;
}

bool map_put(struct map *map, uint64_t key, void *value) {
    if ((!map->cells || map->used >= 3u << map->bits >> 2) && !grow(map)) return false;
    uint32_t cell = find(map, key);
    if (!map->cells[2 * cell]) map->used++;
    map->cells[2 * cell] = key + 1;
    map->cells[2 * cell + 1] = (uint64_t)(uintptr_t)value;
    return true;
}

/* Whether the entry in `cell` may move to `hole`: its home is not between them. */
static bool may_move(const struct map *map, uint32_t cell, uint32_t hole) {
    uint32_t mask = (1u << map->bits) - 1;
    uint32_t from_home = (cell - home(map, map->cells[2 * cell] - 1)) & mask;
    return from_home >= ((cell - hole) & mask);
}

static void close_hole(struct map *map, uint32_t hole) {
    for (uint32_t cell = next(map, hole); map->cells[2 * cell]; cell = next(map, cell)) {
        if (!may_move(map, cell, hole)) continue;
        map->cells[2 * hole] = map->cells[2 * cell];
        map->cells[2 * hole + 1] = map->cells[2 * cell + 1];
        hole = cell;
    }
    map->cells[2 * hole] = map->cells[2 * hole + 1] = 0;
}

void *map_remove(struct map *map, uint64_t key) {
    if (!map->cells) return NULL;
    uint32_t cell = find(map, key);
    void *value = (void *)map->cells[2 * cell + 1];
    if (!map->cells[2 * cell]) return NULL;
    map->used--;
    close_hole(map, cell);
    return value;
}

void map_drain(struct map *map, void (*taken)(void *value, void *context), void *context) {
    struct map old = *map;
    *map = (struct map){0};
    for (uint32_t i = 0; old.cells && i < 1u << old.bits; i++)
        if (old.cells[2 * i]) taken((void *)old.cells[2 * i + 1], context);
    free(old.cells);
}
