#define _GNU_SOURCE
#include "address.h"

#include <sys/mman.h>

enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static uint64_t window, pages, cursor;
static struct region **owners; /* per page */

/* 16 TiB, or less where the process's address space is limited. */
static bool open_window(void) {
    for (uint64_t bytes = (uint64_t)16 << 40; bytes >= (uint64_t)1 << 33; bytes /= 4) {
        void *space = mmap(NULL, bytes + PAGE_BYTES, PROT_NONE, FLAGS, -1, 0);
        if (space == MAP_FAILED) continue;
        void *table =
            mmap(NULL, bytes / PAGE_BYTES * sizeof *owners, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
        if (table == MAP_FAILED) return false;
        window = round_up((uint64_t)space, PAGE_BYTES);
        pages = bytes / PAGE_BYTES;
        owners = table;
        return true;
    }
    return false;
}

/* First page of a free run in [from, to), or `to`. */
static uint64_t find_run(uint64_t from, uint64_t to, uint64_t need, uint64_t step) {
    uint64_t skew = window / PAGE_BYTES; /* alignment counts from address 0 */
    for (uint64_t start = round_up(from + skew, step) - skew; start + need <= to;) {
        uint64_t length = 0;
        while (length < need && !owners[start + length]) length++;
        if (length == need) return start;
        start = round_up(start + length + 1 + skew, step) - skew;
    }
    return to;
}

uint64_t address_take(struct region *region, uint64_t bytes, uint64_t alignment) {
    if (!owners && !open_window()) return 0;
    uint64_t need = round_up(bytes, PAGE_BYTES) / PAGE_BYTES;
    uint64_t step = alignment > PAGE_BYTES ? alignment / PAGE_BYTES : 1;
    if (!need || need > pages) return 0;
    uint64_t start = find_run(cursor, pages, need, step);
    if (start == pages) start = find_run(0, pages, need, step);
    if (start == pages) return 0;
    for (uint64_t i = 0; i < need; i++) owners[start + i] = region;
    cursor = start + need < pages ? start + need : 0;
    region->base = window + start * PAGE_BYTES;
    region->bytes = need * PAGE_BYTES;
    return region->base;
}

void address_give(struct region *region) {
    uint64_t start = (region->base - window) / PAGE_BYTES;
    address_unback(region->base, region->bytes);
    for (uint64_t i = 0; i < region->bytes / PAGE_BYTES; i++) owners[start + i] = NULL;
}

struct region *address_owner(uint64_t address) {
    if (!owners || address < window || address >= window + pages * PAGE_BYTES) return NULL;
    return owners[(address - window) / PAGE_BYTES];
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
