/* Small allocations share pages of 2 MiB, as with NVIDIA's driver. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { UNIT = 512, UNITS = (2 << 20) / UNIT };

struct chunk {
    struct region region; /* must come first */
    unsigned card, used, hint;
    enum memory_kind kind;
    CUmemoryPool pool; /* the pool of the chunk; NULL: it is for cuMemAlloc */
    struct allocation *units[UNITS];
    struct chunk *next, **link;
};

static struct chunk *chunks[SIM_MAX_CARDS];

static struct chunk *new_chunk(const struct allocation *first) {
    unsigned card = first->card;
    CUmemoryPool pool = first->pool;
    struct chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) return NULL;
    chunk->region.kind = REGION_CHUNK;
    chunk->card = card;
    chunk->kind = first->kind;
    chunk->pool = pool;
    if (!sim_take(&driver.sim, card, PAGE_BYTES)) {
        free(chunk);
        return NULL;
    }
    if (!memory_address(first->kind, &chunk->region, PAGE_BYTES) ||
        !address_back(chunk->region.base, PAGE_BYTES)) {
        sim_give(&driver.sim, card, PAGE_BYTES);
        free(chunk);
        return NULL;
    }
    if (pool) pool_grow(pool, PAGE_BYTES);
    chunk->next = chunks[card];
    chunk->link = &chunks[card];
    if (chunk->next) chunk->next->link = &chunk->next;
    chunks[card] = chunk;
    return chunk;
}

static void drop_chunk(struct chunk *chunk) {
    *chunk->link = chunk->next;
    if (chunk->next) chunk->next->link = chunk->link;
    address_give(&chunk->region);
    sim_give(&driver.sim, chunk->card, PAGE_BYTES);
    if (chunk->pool) pool_shrink(chunk->pool, PAGE_BYTES);
    free(chunk);
}

static unsigned units_of(const struct allocation *allocation) {
    return (unsigned)(round_up(allocation->bytes, UNIT) / UNIT);
}

/* Returns the first unit of a free run of `need` units, searching from `from`; UNITS if there is
 * none. */
static unsigned find_units(const struct chunk *chunk, unsigned from, unsigned need) {
    for (unsigned start = from; start + need <= UNITS;) {
        unsigned length = 0;
        while (length < need && !chunk->units[start + length]) length++;
        if (length == need) return start;
        start += length + 1;
    }
    return UNITS;
}

static bool place_in(struct chunk *chunk, struct allocation *allocation) {
    unsigned need = units_of(allocation);
    if (chunk->kind != allocation->kind || chunk->pool != allocation->pool) return false;
    if (UNITS - chunk->used < need) return false;
    unsigned start = find_units(chunk, chunk->hint, need);
    if (start == UNITS) start = find_units(chunk, 0, need);
    if (start == UNITS) return false;
    for (unsigned i = 0; i < need; i++) chunk->units[start + i] = allocation;
    chunk->used += need;
    chunk->hint = start + need;
    allocation->chunk = chunk;
    allocation->base = chunk->region.base + (uint64_t)start * UNIT;
    return true;
}

CUresult chunk_place(struct allocation *allocation) {
    for (struct chunk *chunk = chunks[allocation->card]; chunk; chunk = chunk->next)
        if (place_in(chunk, allocation)) return CUDA_SUCCESS;
    struct chunk *chunk = new_chunk(allocation);
    return chunk && place_in(chunk, allocation) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void chunk_remove(struct allocation *allocation) {
    struct chunk *chunk = allocation->chunk;
    unsigned start = (unsigned)((allocation->base - chunk->region.base) / UNIT);
    unsigned need = units_of(allocation);
    for (unsigned i = 0; i < need; i++) chunk->units[start + i] = NULL;
    chunk->used -= need;
    if (start < chunk->hint) chunk->hint = start;
    if (!chunk->used) drop_chunk(chunk);
}

struct allocation *chunk_find(struct region *region, uint64_t address) {
    struct chunk *chunk = (struct chunk *)region;
    return chunk->units[(address - region->base) / UNIT];
}
