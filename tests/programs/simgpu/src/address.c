#define _GNU_SOURCE
#include "address.h"

#include <sys/mman.h>

enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

struct window {
    uint64_t base, pages, cursor;
    struct region **owners; /* the region that owns each page */
};

static struct window wide, low;

static bool cover(struct window *window, void *space, uint64_t bytes) {
    void *table =
        mmap(NULL, bytes / PAGE_BYTES * sizeof *window->owners, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
    if (table == MAP_FAILED) return false;
    *window = (struct window){round_up((uint64_t)space, PAGE_BYTES), bytes / PAGE_BYTES, 0, table};
    return true;
}

/* Reserves 16 TiB, or less if the process's address space is limited. */
static bool open_wide(void) {
    for (uint64_t bytes = (uint64_t)16 << 40; bytes >= (uint64_t)1 << 33; bytes /= 4) {
        void *space = mmap(NULL, bytes + PAGE_BYTES, PROT_NONE, FLAGS, -1, 0);
        if (space != MAP_FAILED) return cover(&wide, space, bytes);
    }
    return false;
}

/* Reserves half a GiB somewhere below 4 GiB. */
static bool open_low(void) {
    const uint64_t bytes = (uint64_t)512 << 20;
    for (uint64_t base = bytes; base < (uint64_t)4 << 30; base += bytes) {
        void *space = mmap((void *)base, bytes, PROT_NONE, FLAGS | MAP_FIXED_NOREPLACE, -1, 0);
        if (space == (void *)base) return cover(&low, space, bytes);
        if (space != MAP_FAILED) munmap(space, bytes); /* the kernel took the address as a hint */
    }
    return false;
}

/* Returns the first page of a free run of `need` pages in [from, to), or `to` if there is none. */
static uint64_t find_run(const struct window *window, uint64_t from, uint64_t to, uint64_t need,
                         uint64_t step) {
    uint64_t skew = window->base / PAGE_BYTES; /* alignment counts from address 0 */
    for (uint64_t start = round_up(from + skew, step) - skew; start + need <= to;) {
        uint64_t length = 0;
        while (length < need && !window->owners[start + length]) length++;
        if (length == need) return start;
        start = round_up(start + length + 1 + skew, step) - skew;
    }
    return to;
}

static uint64_t take(struct window *window, struct region *region, uint64_t bytes,
                     uint64_t alignment) {
    uint64_t need = round_up(bytes, PAGE_BYTES) / PAGE_BYTES, pages = window->pages;
    uint64_t step = alignment > PAGE_BYTES ? alignment / PAGE_BYTES : 1;
    if (!need || need > pages) return 0;
    uint64_t start = find_run(window, window->cursor, pages, need, step);
    if (start == pages) start = find_run(window, 0, pages, need, step);
    if (start == pages) return 0;
    for (uint64_t i = 0; i < need; i++) window->owners[start + i] = region;
    window->cursor = start + need < pages ? start + need : 0;
    region->base = window->base + start * PAGE_BYTES;
    region->bytes = need * PAGE_BYTES;
    return region->base;
}

uint64_t address_take(struct region *region, uint64_t bytes, uint64_t alignment) {
    return wide.owners || open_wide() ? take(&wide, region, bytes, alignment) : 0;
}

uint64_t address_take_low(struct region *region, uint64_t bytes) {
    return low.owners || open_low() ? take(&low, region, bytes, PAGE_BYTES) : 0;
}

/* Returns the page-table entry of the address, or NULL. */
static struct region **place_in(const struct window *window, uint64_t address) {
    uint64_t page = (address - window->base) / PAGE_BYTES;
    return address >= window->base && page < window->pages ? &window->owners[page] : NULL;
}

static struct region **place_of(uint64_t address) {
    struct region **place = place_in(&wide, address);
    return place ? place : place_in(&low, address);
}

void address_give(struct region *region) {
    struct region **place = place_of(region->base);
    address_unback(region->base, region->bytes);
    for (uint64_t i = 0; i < region->bytes / PAGE_BYTES; i++) place[i] = NULL;
}

struct region *address_owner(uint64_t address) {
    struct region **place = place_of(address);
    return place ? *place : NULL;
}

static bool remap(uint64_t base, uint64_t bytes, int protection) {
    return mmap((void *)base, bytes, protection, FLAGS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool address_back(uint64_t base, uint64_t bytes) {
    return remap(base, bytes, PROT_READ | PROT_WRITE);
}

void address_unback(uint64_t base, uint64_t bytes) {
    remap(base, bytes, PROT_NONE);
}
