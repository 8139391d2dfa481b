/* Device addresses: one large window of this process's address space, in pages of 2 MiB as on a
 * card, so that a device pointer is found by a table and copies to it are real. A small one lies
 * below 4 GiB, for entries whose pointers have 32 bits. */
#ifndef SIM_ADDRESS_H
#define SIM_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_BYTES ((uint64_t)2 << 20)

/* What owns a run of pages. */
enum region_kind { REGION_BLOCK, REGION_CHUNK, REGION_RESERVED };

struct region {
    enum region_kind kind;
    uint64_t base, bytes;
};

static inline uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* The callers hold memory_lock. `alignment` is a power of two, at least a page. 0: no room. */
uint64_t address_take(struct region *region, uint64_t bytes, uint64_t alignment);
uint64_t address_take_low(struct region *region, uint64_t bytes);
void address_give(struct region *region);
/* Owner of the address, or NULL. */
struct region *address_owner(uint64_t address);

/* Make pages usable (zero pages, no backing until touched), or unusable again. */
bool address_back(uint64_t base, uint64_t bytes);
void address_unback(uint64_t base, uint64_t bytes);

#endif
