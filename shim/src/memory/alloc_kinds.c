#include "memory/alloc_kinds.h"

#include "memory/charge.h"
#include "memory/estimates.h"
#include "memory/imports.h"
#include "memory/small_arrays.h"

static void leave_pages(struct regions *regions, const struct alloc *alloc, uint64_t page,
                        uint64_t end) {
    for (; page < end; page++)
        if (pages_leave(regions->process, page) && !small_arrays_inherit_page(regions, alloc->card))
            charge_release(regions, alloc->card, PAGE_BYTES);
}

static uint64_t page_after(uint64_t pointer, uint64_t bytes) {
    return (pointer + (bytes ? bytes - 1 : 0)) / PAGE_BYTES + 1;
}

/*
 * Counts one more allocation in the page, and charges the page unless it is charged already.
 * *spare: whether a page is reserved that can be used for that. Returns false if the limit does not
 * allow it.
 */
static bool enter_page(struct regions *regions, int card, uint64_t page, bool *spare) {
    if (pages_join(regions->process, page)) return true;
    if (!*spare && !charge_within_limit(regions, card, PAGE_BYTES)) return false;
    *spare = false;
    pages_enter(regions->process, page);
    return true;
}

bool alloc_kind_enter_pages(struct regions *regions, uint64_t pointer, const struct alloc *alloc) {
    uint64_t first = pointer / PAGE_BYTES, end = page_after(pointer, alloc->bytes), page = first;
    bool spare = true;
    while (page < end && enter_page(regions, alloc->card, page, &spare)) page++;
    if (spare) charge_release(regions, alloc->card, PAGE_BYTES);
    if (page < end) leave_pages(regions, alloc, first, page);
    return page == end;
}

static void leave_whole(struct regions *regions, const struct alloc *alloc) {
    if (alloc_kind_is_estimate(alloc))
        estimates_release(regions, alloc->card, alloc->bytes);
    else
        charge_release(regions, alloc->card, alloc->bytes);
}

void alloc_kind_release(struct regions *regions, uint64_t pointer, const struct alloc *alloc) {
    if (alloc->kind == ALLOC_SMALL)
        leave_pages(regions, alloc, pointer / PAGE_BYTES, page_after(pointer, alloc->bytes));
    else if (alloc->kind == ALLOC_EXTERNAL)
        imports_leave(regions, alloc->import);
    else if (alloc_kind_is_small_array(alloc))
        small_arrays_remove(regions, alloc->card);
    /* An array that was small before its size was corrected may share its page with others. */
    else if (alloc_kind_is_array(alloc) && small_arrays_inherit_page(regions, alloc->card))
        charge_release(regions, alloc->card, alloc->bytes - PAGE_BYTES);
    else
        leave_whole(regions, alloc);
}
