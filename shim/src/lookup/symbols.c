#include "lookup/symbols.h"

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

#pragma weak _r_debug /* so that the shim depends on libc only */

struct object {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *hash;
};

struct search {
    const char *name;
    uintptr_t self; /* an address in the object after which the search begins */
    bool passed;    /* the search has passed that object */
    bool any;       /* search all objects, not only libc's */
    void *found;
};

static bool covers(const struct dl_phdr_info *info, uintptr_t address) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && address - start < info->dlpi_phdr[i].p_memsz)
            return true;
    }
    return false;
}

static const ElfW(Dyn) * dynamic_of(const struct dl_phdr_info *info) {
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return NULL;
}

/*
 * Uses the address of the string table, which is never replaced: the symbol table may be a copy
 * (elf_patch.c) that lies before the object.
 */
bool symbols_relocated(uintptr_t base, const ElfW(Dyn) * entry) {
    while (entry && entry->d_tag != DT_NULL && entry->d_tag != DT_STRTAB) entry++;
    return entry && entry->d_tag == DT_STRTAB && entry->d_un.d_ptr >= base;
}

static bool read_object(uintptr_t base, const ElfW(Dyn) * entry, struct object *object) {
    uintptr_t added = symbols_relocated(base, entry) ? 0 : base;
    *object = (struct object){.base = base};
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        const void *target = (const void *)(entry->d_un.d_ptr + added);
        if (entry->d_tag == DT_SYMTAB) object->symbols = target;
        if (entry->d_tag == DT_STRTAB) object->strings = target;
        if (entry->d_tag == DT_GNU_HASH) object->hash = target;
    }
    return object->symbols && object->strings && object->hash;
}

static uint32_t hash_of(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++) hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The GNU hash section: 4 words of header, a Bloom filter, buckets, chains. */
static void *look_up(const struct object *object, const char *name) {
    uint32_t buckets = object->hash[0], first = object->hash[1], bloom = object->hash[2];
    const uint32_t *bucket = object->hash + 4 + bloom * (sizeof(uintptr_t) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = hash_of(name);
    if (!buckets) return NULL;
    for (uint32_t i = bucket[hash % buckets]; i >= first && i; i++) {
        const ElfW(Sym) *symbol = &object->symbols[i];
        if ((chain[i - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            text_is(object->strings + symbol->st_name, name))
            return (void *)(object->base + symbol->st_value);
        if (chain[i - first] & 1) break;
    }
    return NULL;
}

static bool is_libc(const char *path) {
    return path && (text_contains(path, "/libc.so") || text_contains(path, "/libdl.so"));
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    struct object object;
    (void)size;
    if (!search->passed) {
        search->passed = covers(info, search->self);
        return 0;
    }
    if ((search->any || is_libc(info->dlpi_name)) &&
        read_object(info->dlpi_addr, dynamic_of(info), &object))
        search->found = look_up(&object, search->name);
    return search->found != NULL;
}

static void *find(const char *name, const void *after, bool any) {
    struct search search = {.name = name, .self = (uintptr_t)after, .any = any};
    dl_iterate_phdr(visit, &search);
    return search.found;
}

/*
 * Searches ld.so's own list of objects: a sanitizer in the program may look libc's functions up
 * before dl_iterate_phdr, which it has replaced, can be called. libc is among the first objects,
 * which are never removed. Returns NULL also if the shim is in another namespace, which has a list
 * of its own.
 */
static void *find_early(const char *name) {
    const struct link_map *next = &_r_debug ? _r_debug.r_map : NULL;
    struct object object;
    void *found = NULL;
    while (next && next->l_ld != _DYNAMIC) next = next->l_next;
    for (; next && !found; next = next->l_next)
        if (is_libc(next->l_name) && read_object(next->l_addr, next->l_ld, &object))
            found = look_up(&object, name);
    return found;
}

/* Whether the path's file name begins with `name`. */
static bool is_named(const char *path, const char *name) {
    const char *file = path;
    for (; *path; path++)
        if (*path == '/') file = path + 1;
    return text_begins(file, name);
}

bool symbols_precede(const char *name) {
    const struct link_map *next = &_r_debug ? _r_debug.r_map : NULL;
    bool any = false;
    for (; next && next->l_ld != _DYNAMIC; next = next->l_next) any = any || is_named(next->l_name, name);
    return next && any;
}

void *symbols_next(const char *name) {
    void *found = find_early(name);
    if (!found) found = find(name, (void *)&symbols_next, false);
    return found ? found : symbols_after((void *)&symbols_next, name);
}

void *symbols_after(const void *code, const char *name) {
    return find(name, code, true);
}
