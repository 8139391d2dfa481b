/* Device addresses: one large window of this process's address space, in pages of 2 MiB as on a
 * card. A table finds the owner of a device pointer, and copies to it are real. A second, small
 * window lies below 4 GiB, for entry points whose pointers have 32 bits. */
#ifndef SIM_ADDRESS_H
#define SIM_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_BYTES ((uint64_t)2 << 20)

/* Kinds of owners of a run of pages. */
enum region_kind { REGION_BLOCK, REGION_CHUNK, REGION_RESERVED };

struct region {
    enum region_kind kind;
    uint64_t base, bytes;
};

static inline uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* Reserves pages for the region; returns their address, or 0 if there is no room. `alignment` is a
 * power of two, at least a page. The caller holds memory_lock. */
uint64_t address_take(struct region *region, uint64_t bytes, uint64_t alignment);
uint64_t address_take_low(struct region *region, uint64_t bytes);
void address_give(struct region *region);
/* The owner of the address, or NULL. */
struct region *address_owner(uint64_t address);

/* Makes pages readable and writable (zero, without memory until touched), or inaccessible again. */
bool address_back(uint64_t base, uint64_t bytes);
void address_unback(uint64_t base, uint64_t bytes);

#endif
