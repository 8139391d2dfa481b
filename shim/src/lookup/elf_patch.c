/*
 * The loader finds an object's symbol table by the DT_SYMTAB entry, which it reads at every lookup.
 * The entry is changed to a copy of the table in which the hooked functions have the wrappers'
 * addresses. That is a single store of one word, so a lookup in another thread uses either the old
 * table or the new one. References that ld.so has bound already, as to a driver in LD_PRELOAD, are
 * changed one by one.
 */
#include "lookup/elf_patch.h"

#include <string.h>

#include "base/sys.h"
#include "lookup/resolve.h"
#include "lookup/symbols.h"

struct table {
    ElfW(Dyn) *entry; /* DT_SYMTAB */
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu_hash, *hash;
    uintptr_t base;
    uintptr_t added; /* to pointers of the dynamic section: the base, unless ld.so has added it */
};

static bool read_table(const struct link_map *object, struct table *table) {
    uintptr_t added = symbols_relocated(object->l_addr, object->l_ld) ? 0 : object->l_addr;
    *table = (struct table){.base = object->l_addr, .added = added};
    for (ElfW(Dyn) *entry = object->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
        const void *target = (const void *)(entry->d_un.d_ptr + added);
        if (entry->d_tag == DT_SYMTAB) table->entry = entry, table->symbols = target;
        if (entry->d_tag == DT_STRTAB) table->strings = target;
        if (entry->d_tag == DT_GNU_HASH) table->gnu_hash = target;
        if (entry->d_tag == DT_HASH) table->hash = target;
    }
    return table->symbols && table->strings && (table->gnu_hash || table->hash);
}

/*
 * The number of symbols by the GNU hash section, which does not contain it: the end of the last
 * chain.
 */
static size_t count_gnu(const uint32_t *hash) {
    uint32_t buckets = hash[0], first = hash[1], last = 0;
    const uint32_t *bucket = hash + 4 + hash[2] * (sizeof(uintptr_t) / sizeof(uint32_t));
    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last) last = bucket[i];
    if (last < first) return first;
    while (!(bucket[buckets + last - first] & 1)) last++;
    return (size_t)last + 1;
}

static size_t count(const struct table *table) {
    return table->hash ? table->hash[1] : count_gnu(table->gnu_hash);
}

static void name_wrappers(const struct table *table, ElfW(Sym) *symbols, size_t number,
                          enum hook_library library) {
    for (size_t i = 0; i < number; i++) {
        int hook = symbols[i].st_shndx == SHN_UNDEF
                       ? HOOK_NONE
                       : hooks_by_symbol(table->strings + symbols[i].st_name);
        if (hook == HOOK_NONE || hooks[hook].library != library) continue;
        symbols[i].st_value = (uintptr_t)hooks[hook].wrapper - table->base;
    }
}

/* What ld.so has made read-only after loading: the whole pages of PT_GNU_RELRO. */
static int find_relro(struct dl_phdr_info *info, size_t size, void *address) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        uintptr_t end = start + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO && (uintptr_t)address >= (start & -page) &&
            (uintptr_t)address < (end & -page))
            return 1;
    }
    return 0;
}

/* Changes the word. Most objects' section is read-only after loading, and is made so again. */
static bool store(uintptr_t *word, uintptr_t value) {
    uintptr_t page = (uintptr_t)word & -(uintptr_t)sysconf(_SC_PAGESIZE);
    size_t bytes = (uintptr_t)(word + 1) - page;
    if (SYS(SYS_mprotect, page, bytes, PROT_READ | PROT_WRITE) != 0) return false;
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    if (dl_iterate_phdr(find_relro, word)) SYS(SYS_mprotect, page, bytes, PROT_READ);
    return true;
}

bool elf_patch_symbols(struct link_map *object, enum hook_library library) {
    struct table table;
    if (!object || !read_table(object, &table)) return false;
    size_t number = count(&table), bytes = number * sizeof *table.symbols;
    ElfW(Sym) *copy = sys_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!copy) return false;
    memcpy(copy, table.symbols, bytes);
    name_wrappers(&table, copy, number, library);
    return store(&table.entry->d_un.d_ptr, (uintptr_t)copy - table.added);
}

/* ---- references that are bound already ---- */

/* The references that an object's relocations made, in one of its two tables. */
struct references {
    const ElfW(Rela) *first;
    size_t bytes;
};

static void read_references(const struct link_map *object, uintptr_t added, struct references *plain,
                            struct references *calls) {
    for (const ElfW(Dyn) *entry = object->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_RELA) plain->first = (const void *)(entry->d_un.d_ptr + added);
        if (entry->d_tag == DT_RELASZ) plain->bytes = entry->d_un.d_val;
        if (entry->d_tag == DT_JMPREL) calls->first = (const void *)(entry->d_un.d_ptr + added);
        if (entry->d_tag == DT_PLTRELSZ) calls->bytes = entry->d_un.d_val;
    }
}

/* The hook of the driver's function to which the word refers; HOOK_NONE if it refers to none. */
static int hook_referred(const struct table *table, const ElfW(Rela) *each, const uintptr_t *word,
                         enum hook_library library) {
    size_t symbol = ELF64_R_SYM(each->r_info);
    int hook = symbol ? hooks_by_symbol(table->strings + table->symbols[symbol].st_name) : HOOK_NONE;
    if (hook == HOOK_NONE || hooks[hook].library != library) return HOOK_NONE;
    return *word && *word == (uintptr_t)resolve_find(hook) ? hook : HOOK_NONE;
}

static bool rebind(const struct table *table, const struct references *references, enum hook_library library) {
    bool done = true;
    const ElfW(Rela) *end = references->first + references->bytes / sizeof *end;
    for (const ElfW(Rela) *each = references->first; each < end; each++) {
        uintptr_t *word = (uintptr_t *)(table->base + each->r_offset);
        int hook = hook_referred(table, each, word, library);
        if (hook != HOOK_NONE) done = store(word, (uintptr_t)hooks[hook].wrapper) && done;
    }
    return done;
}

bool elf_patch_references(struct link_map *object, enum hook_library library) {
    struct references plain = {NULL, 0}, calls = {NULL, 0};
    struct table table;
    if (!read_table(object, &table)) return true; /* it has no references by name */
    read_references(object, table.added, &plain, &calls);
    return rebind(&table, &plain, library) && rebind(&table, &calls, library);
}
