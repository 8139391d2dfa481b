#include "memory/loads.h"

#include <string.h>

#include "base/sys.h"
#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/charge.h"
#include "memory/first_use.h"
#include "memory/lazy_code.h"
#include "memory/pages.h"
#include "region/dead_processes.h"
#include "region/enter.h"
#include "region/memory_ledger.h"

#define UNKNOWN (32 * PAGE_BYTES) /* the most bytes that an image of unknown size is charged */

/* ---- the size of an image -------------------------------------------------------------------- */

struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

struct elf_header {
    unsigned char magic[40];
    uint64_t sections_at;
    unsigned char other[10];
    uint16_t section_bytes, sections;
};

#define FAT_WRAPPER UINT32_C(0x466243b1)
#define FAT_HEADER UINT32_C(0xba55ed50)

static uint64_t elf_bytes(const void *image) {
    struct elf_header header;
    memcpy(&header, image, sizeof header);
    return header.sections_at + (uint64_t)header.section_bytes * header.sections;
}

static uint64_t fat_bytes(const void *image) {
    struct fat_header header;
    memcpy(&header, image, sizeof header);
    return header.header_bytes + header.bytes;
}

uint64_t loads_image_bytes(const void *image) {
    struct fat_wrapper wrapper;
    uint32_t magic = 0;
    if (!image) return 0;
    memccpy(&magic, image, 0, sizeof magic); /* PTX may be shorter */
    if (magic == FAT_HEADER) return fat_bytes(image);
    if (!strncmp(image, "\177ELF", 4)) return elf_bytes(image);
    if (magic != FAT_WRAPPER) return strlen(image);
    memcpy(&wrapper, image, sizeof wrapper);
    return fat_bytes(wrapper.data);
}

uint64_t loads_file_bytes(const char *path) {
    int fd = path ? sys_open(path, O_RDONLY) : -1;
    long bytes = fd < 0 ? 0 : sys_size(fd);
    if (fd >= 0) sys_close(fd);
    return bytes > 0 ? (uint64_t)bytes : 0;
}

/* ---- the memory that it takes ---------------------------------------------------------------- */

/*
 * The most bytes that code of an image of this size may take. Code lies in pages of the driver's
 * own, and there are variables and tables in addition.
 */
static uint64_t most_for(uint64_t image_bytes) {
    return image_bytes && image_bytes < MIZAR_BYTES_MAX / 4 ? 2 * image_bytes + 2 * PAGE_BYTES
                                                            : UNKNOWN;
}

/* The bytes that the next load probably takes at most: those of the largest so far on the card. */
static uint64_t expected(int card, const struct regions *regions, uint64_t most) {
    uint64_t seen = __atomic_load_n(&regions->process->cards[card].largest_load, __ATOMIC_RELAXED);
    uint64_t bytes = seen > PAGE_BYTES ? seen : PAGE_BYTES;
    return bytes < most ? bytes : most;
}

/* The bytes in use on the card beyond this container's account. */
static bool measure(const struct allocation *allocation, int64_t *bytes) {
    size_t free_now, total;
    if (RELAXED(cuMemGetInfo_v2, &free_now, &total) != CUDA_SUCCESS) return false;
    *bytes = (int64_t)(total - free_now) -
             (int64_t)charge_total(allocation->regions, allocation->alloc.card);
    return true;
}

/* A number that changes whenever the container's account does. */
static uint32_t moves(const struct allocation *allocation) {
    return ledger_view(allocation->regions->usage, (unsigned)allocation->alloc.card).seq;
}

/* Only one thread measures at a time; loads in other threads are charged their expected size. */
static bool begin_measuring(struct load *load) {
    uint32_t *lock = &load->allocation.regions->process->load_lock;
    if (!lock_try(lock)) return false;
    load->moves = moves(&load->allocation);
    if (measure(&load->allocation, &load->before)) return true;
    lock_release(lock);
    return false;
}

static bool has_card(int *card) {
    struct regions *regions;
    CUresult result = shim_enter(&regions);
    return result == CUDA_SUCCESS && regions && cards_current(regions, card) == CUDA_SUCCESS &&
           *card != CARD_NONE;
}

static CUresult begin_late(struct load *load, enum alloc_kind kind) {
    CUresult result = allocation_locate(&load->allocation);
    load->allocation.alloc.kind = kind;
    if (result != CUDA_SUCCESS) return result;
    result = first_use_begin_many(&load->use, load->allocation.regions, MIZAR_CODE_PER_PAGE);
    load->late = result == CUDA_SUCCESS;
    load->measuring = load->late && begin_measuring(load);
    return result;
}

CUresult loads_begin(struct load *load, enum alloc_kind kind, uint64_t image_bytes) {
    int card;
    *load = (struct load){.most = most_for(image_bytes)};
    CUresult result = shim_enter(&load->allocation.regions);
    if (result != CUDA_SUCCESS || !has_card(&card)) return result;
    if (lazy_code_is_watched(load->allocation.regions, card)) return begin_late(load, kind);
    result = allocation_reserve_whole(&load->allocation, expected(card, load->allocation.regions, load->most));
    load->allocation.alloc.kind = kind;
    if (result != CUDA_SUCCESS) return result;
    lazy_code_change_begun(load->allocation.regions, card, 1);
    load->measuring = begin_measuring(load);
    return result;
}

static uint64_t clamp(int64_t bytes, uint64_t most) {
    return bytes < 0 ? 0 : (uint64_t)bytes < most ? (uint64_t)bytes : most;
}

static void learn(const struct allocation *allocation, uint64_t bytes) {
    uint64_t *most = &allocation->regions->process->cards[allocation->alloc.card].largest_load;
    if (bytes > __atomic_load_n(most, __ATOMIC_RELAXED))
        __atomic_store_n(most, bytes, __ATOMIC_RELAXED);
}

/*
 * The bytes that a load took. Memory that other threads and processes of the container free
 * meanwhile makes it look smaller. The account shows whether they did, once dead processes are
 * settled; if so, the load counts as at least what was reserved.
 */
static uint64_t taken(struct load *load, int64_t after) {
    struct allocation *allocation = &load->allocation;
    uint64_t bytes = clamp(after - load->before, load->most), reserved = allocation->alloc.bytes;
    if (bytes >= reserved) return bytes;
    return dead_processes_settle(allocation->regions) && moves(allocation) == load->moves ? bytes : reserved;
}

/*
 * Replaces the reservation by what was measured. If the limit does not allow that, the load is
 * undone; if that is not possible, it is charged regardless of the limit.
 */
static CUresult correct(struct load *load, uint64_t key, allocation_undo *undo) {
    struct allocation *allocation = &load->allocation;
    int64_t after;
    if (!load->measuring || !measure(allocation, &after)) return CUDA_SUCCESS;
    uint64_t bytes = taken(load, after);
    learn(allocation, bytes);
    if (allocation_correct(allocation, bytes) == CUDA_SUCCESS) return CUDA_SUCCESS;
    if (undo && undo(key) == CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY;
    charge_force(allocation->regions, allocation->alloc.card, charge_size(bytes) - allocation->alloc.bytes);
    allocation->alloc.bytes = charge_size(bytes);
    return CUDA_SUCCESS;
}

static CUresult keep(uint64_t key) {
    (void)key;
    return CUDA_SUCCESS;
}

static CUresult settle(struct load *load, CUresult result, const void *handle, allocation_undo *undo) {
    struct allocation *allocation = &load->allocation;
    uint64_t key = alloc_key(allocation->alloc.kind, handle);
    if (result == CUDA_SUCCESS) result = correct(load, key, undo);
    if (load->measuring) lock_release(&allocation->regions->process->load_lock);
    if (!allocation->alloc.bytes) return result; /* loaded already, or loaded at first use */
    return allocation_settle(allocation, result, key, undo ? undo : keep);
}

/* The bytes that were loaded beyond the page that was reserved; 0 if not measured. */
static uint64_t more_came(struct load *load) {
    int64_t after;
    if (!load->measuring || !measure(&load->allocation, &after)) return 0;
    uint64_t came = clamp(after - load->before, load->most);
    return came > PAGE_BYTES ? came - PAGE_BYTES : 0;
}

/* A load that is not allowed is undone; if that is not possible, it stays counted. */
static CUresult end_late(struct load *load, CUresult result, const void *handle, allocation_undo *undo) {
    const struct allocation *allocation = &load->allocation;
    uint64_t more = result == CUDA_SUCCESS ? more_came(load) : 0;
    if (load->measuring) lock_release(&allocation->regions->process->load_lock);
    result = first_use_end(&load->use, result);
    if (lazy_code_admit(allocation->regions, allocation->alloc.card, more, &load->use.waited) || !undo) return result;
    bool undone = undo(alloc_key(allocation->alloc.kind, handle)) == CUDA_SUCCESS;
    return undone ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult loads_end(struct load *load, CUresult result, const void *handle, allocation_undo *undo) {
    struct allocation *allocation = &load->allocation;
    if (load->late) return end_late(load, result, handle, undo);
    if (!allocation->reserved) return result;
    result = settle(load, result, handle, undo);
    lazy_code_change_begun(allocation->regions, allocation->alloc.card, -1);
    return result;
}
