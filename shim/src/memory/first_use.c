#include "memory/first_use.h"

#include "base/handle_set.h"
#include "base/numbers.h"
#include "lookup/cards.h"
#include "lookup/resolve.h"
#include "memory/lazy_code.h"
#include "memory/pages.h"
#include "memory/stacks.h"
#include "region/enter.h"

/* ---- code that was used ---------------------------------------------------------------------- */

/* The key of a function in the current context: a library's kernel is another function in each. */
static uint64_t key_of(const void *work) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    return scattered((uintptr_t)context, 64) ^ (uintptr_t)work;
}

static uint64_t key_named(const void *owner, const char *name) {
    uint64_t key = (uintptr_t)owner;
    for (; name && *name; name++) key = scattered(key ^ (unsigned char)*name, 64);
    return key_of((const void *)(uintptr_t)key) | 1; /* handles are even */
}

static bool is_known(struct regions *regions, uint64_t key) {
    return handle_set_has(&regions->process->uses, key);
}

void first_use_forget_all(void) {
    struct regions *regions = shim_known();
    if (regions) handle_set_forget_all(&regions->process->uses);
}

void first_use_forget(const void *owner) {
    struct regions *regions = shim_known();
    if (!regions || !owner) return;
    handle_set_forget(&regions->process->uses, owner);
    handle_set_forget(&regions->process->kinds, owner);
}

/* ---- one at a time --------------------------------------------------------------------------- */

static CUresult begin(struct first_use *use, struct regions *regions, unsigned uses) {
    int card;
    if (cards_current(regions, &card) != CUDA_SUCCESS || card == CARD_NONE) return CUDA_SUCCESS;
    use->regions = regions;
    use->card = card;
    if (!lazy_code_comes_late()) return CUDA_SUCCESS;
    if (!lazy_code_claim(regions, card, uses, &use->waited)) {
        use->regions = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    use->count = uses;
    return CUDA_SUCCESS;
}

static CUresult begin_one(struct first_use *use, struct regions *regions, uint64_t key, const void *owner) {
    *use = (struct first_use){.key = key, .owner = owner, .waited = use->waited};
    return is_known(regions, key) ? CUDA_SUCCESS : begin(use, regions, 1);
}

/* Reserves room for the code, if it is loaded at first use, and then for the stacks. */
static CUresult begin_launch(struct first_use *use, struct regions *regions, const void *work) {
    CUresult result = begin_one(use, regions, key_of(work), stacks_owner(regions, work));
    if (result != CUDA_SUCCESS || !use->regions) return result;
    use->stacks = stacks_wanted(regions, work);
    bool fit = stacks_reserve(regions, use->stacks);
    return fit ? CUDA_SUCCESS : first_use_end(use, CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult begin_launch_or_wait(struct first_use *use, struct regions *regions, const void *work) {
    CUresult result = begin_launch(use, regions, work);
    if (result == CUDA_SUCCESS || !use->stacks) return result;
    return lazy_code_await_look(regions, use->card, PAGE_BYTES, &use->waited) ? begin_launch(use, regions, work) : result;
}

CUresult first_use_begin(struct first_use *use, struct regions *regions, const void *work, uintptr_t stream) {
    *use = (struct first_use){0};
    if (!regions || first_use_is_known(regions, work)) return CUDA_SUCCESS;
    bool entered = stream > CU_STREAM_PER_THREAD && cards_enter(cards_context((CUstream)stream));
    CUresult result = begin_launch_or_wait(use, regions, work);
    if (entered) cards_leave();
    return result;
}

CUresult first_use_begin_named(struct first_use *use, struct regions *regions, const void *owner,
                               const char *name) {
    *use = (struct first_use){0};
    return regions ? begin_one(use, regions, key_named(owner, name), owner) : CUDA_SUCCESS;
}

CUresult first_use_end(const struct first_use *use, CUresult result) {
    if (!use->regions) return result;
    if (use->count) lazy_code_change_begun(use->regions, use->card, -(int)use->count);
    if (result == CUDA_SUCCESS && use->key)
        handle_set_add(&use->regions->process->uses, use->key, use->owner);
    return result;
}

/* ---- many at once ---------------------------------------------------------------------------- */

bool first_use_is_known(struct regions *regions, const void *work) {
    return is_known(regions, key_of(work));
}

CUresult first_use_begin_many(struct first_use *use, struct regions *regions, unsigned many) {
    *use = (struct first_use){.waited = use->waited};
    return regions && many ? begin(use, regions, many) : CUDA_SUCCESS;
}

void first_use_remember(struct regions *regions, const void *work) {
    handle_set_add(&regions->process->uses, key_of(work), stacks_owner(regions, work));
}
