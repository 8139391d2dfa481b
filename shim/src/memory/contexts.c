#include "memory/contexts.h"

#include <string.h>

#include "base/atomics.h"
#include "base/numbers.h"
#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/alloc_kinds.h"
#include "memory/alloc_table.h"
#include "memory/lent_card.h"
#include "memory/charge.h"
#include "memory/charge_or_reclaim.h"
#include "memory/estimates.h"
#include "memory/lazy_code.h"
#include "memory/whole_card_memory.h"
#include "memory/vmm.h"

#define OF_A_VIEW (-1) /* the device of a context that is only a view */

/* Calls that function of all listeners. */
#define EACH_LISTENER(what, ...)                                       \
    for (unsigned i_ = 0; i_ < context_listener_count; i_++)           \
        if (context_listeners[i_].what) context_listeners[i_].what(__VA_ARGS__)

/* ---- the table ------------------------------------------------------------------------------- */

static unsigned used(struct process *process) {
    return load_acquire(&process->contexts_used);
}

static uint64_t handle_in(struct process *process, unsigned place) {
    return load_acquire(&process->contexts[place].handle);
}

/* The number of the context, or 0. */
static unsigned find(struct process *process, CUcontext context) {
    for (unsigned place = 0; place < used(process); place++)
        if (handle_in(process, place) == (uint64_t)(uintptr_t)context) return place + 1;
    return 0;
}

CUcontext contexts_numbered(struct regions *regions, unsigned number) {
    return number ? (CUcontext)(uintptr_t)handle_in(regions->process, number - 1) : NULL;
}

static unsigned free_place(struct process *process) {
    unsigned place = 0;
    while (place < used(process) && handle_in(process, place)) place++;
    return place;
}

/* The handle is written last, since some threads read the entry without the lock. */
static void fill(struct process_context *place, const struct process_context *entry) {
    place->bytes = entry->bytes;
    memset(place->limits, 0, sizeof place->limits);
    place->stack_needed = 0;
    place->card = entry->card;
    __atomic_store_n(&place->device, entry->device, __ATOMIC_RELAXED);
    __atomic_store_n(&place->primary, entry->primary, __ATOMIC_RELAXED);
    __atomic_store_n(&place->handle, entry->handle, __ATOMIC_RELEASE);
}

/*
 * Adds a context and returns its number. Returns 0 if the table is full; its charge is never given
 * back then. The caller holds the lock.
 */
static unsigned add(struct process *process, struct process_context entry) {
    unsigned place = free_place(process);
    if (place == CONTEXTS_MAX) return 0;
    fill(&process->contexts[place], &entry);
    if (place == used(process))
        __atomic_store_n(&process->contexts_used, place + 1, __ATOMIC_RELEASE);
    return place + 1;
}

static CUdevice device_in(struct process *process, unsigned place) {
    return load_relaxed(&process->contexts[place].device);
}

static bool is_primary(struct process *process, unsigned place) {
    return handle_in(process, place) &&
           load_relaxed(&process->contexts[place].primary);
}

/* The number of the device's primary context, or 0. */
static unsigned find_primary(struct process *process, CUdevice device) {
    for (unsigned place = 0; place < used(process); place++)
        if (is_primary(process, place) && device_in(process, place) == device) return place + 1;
    return 0;
}

/* ---- the cost of a context ------------------------------------------------------------------- */

#define SAMPLES 3

/*
 * The median of the measurements by this container's processes. A single measurement is too high or
 * too low if neighbours take or free memory meanwhile. Returns false if there is none.
 */
static bool learned_cost(struct regions *regions, int card, uint64_t *bytes) {
    uint64_t sample[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        sample[i] =
            load_relaxed(&regions->usage->cards[card].learned_contexts[i]);
    uint64_t low = smaller(sample[0], sample[1]), high = larger(sample[0], sample[1]);
    uint64_t middle = larger(low, smaller(high, sample[2]));
    if (!middle) middle = larger(high, sample[2]); /* there is only one */
    *bytes = middle ? smaller(middle - 1, MIZAR_BYTES_MAX) : 0;
    return middle != 0;
}

/*
 * The cost of a context in bytes, from the limits or as measured. Returns false, and 0 bytes, if it
 * is not known.
 */
static bool known_cost(struct regions *regions, int card, uint64_t *bytes) {
    uint64_t told = load_relaxed(&regions->process->cards[card].context_bytes);
    *bytes = smaller(told, MIZAR_BYTES_MAX);
    return told || learned_cost(regions, card, bytes);
}

/* Where to store another measurement; NULL if there are enough, or the limits have the cost. */
static uint64_t *sample_wanted(struct regions *regions, int card) {
    uint64_t *sample = regions->usage->cards[card].learned_contexts;
    if (load_relaxed(&regions->process->cards[card].context_bytes)) return NULL;
    for (int i = 0; i < SAMPLES; i++)
        if (!load_relaxed(&sample[i])) return &sample[i];
    return NULL;
}

/* The bytes in use on the card beyond this container's account. */
static bool measure(struct regions *regions, int card, int64_t *bytes) {
    uint64_t used;
    if (!nvml_memory_used(regions, card, &used)) return false;
    *bytes = (int64_t)used - (int64_t)charge_total(regions, card);
    return true;
}

/* ---- contexts that the program makes --------------------------------------------------------- */

static bool is_counted(const struct context_charge *charge) {
    return charge->primary && find_primary(charge->regions->process, charge->device);
}

/*
 * Charges the context and takes the lock; returns false, without the lock, if it does not fit. The
 * lock is released while the thread waits for room, so that it delays no other thread.
 */
static bool lock_with_room(struct context_charge *charge) {
    struct regions *regions = charge->regions;
    uint32_t *lock = &regions->process->context_lock;
    lock_take(lock);
    charge->counted = is_counted(charge);
    if (charge->counted) return true;
    known_cost(regions, charge->card, &charge->bytes);
    if (charge_within_limit(regions, charge->card, charge->bytes)) return true;
    lock_release(lock);
    if (!charge_or_wait(regions, charge->card, charge->bytes)) return false;
    lock_take(lock);
    charge->counted = is_counted(charge);
    if (charge->counted) charge_release(regions, charge->card, charge->bytes);
    return true;
}

static void await_borrower(struct regions *regions, int card) {
    uint64_t bytes;
    known_cost(regions, card, &bytes);
    lent_card_await(regions, card, bytes);
}

CUresult contexts_begin(struct context_charge *charge, CUdevice device, bool primary) {
    struct regions *regions = charge->regions;
    charge->device = device;
    charge->card = cards_of_device(regions, device);
    if (charge->card == CARD_NONE) return cards_refusal(device);
    charge->primary = primary;
    await_borrower(regions, charge->card);
    if (!lock_with_room(charge)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (charge->counted) return CUDA_SUCCESS;
    lazy_code_change_begun(regions, charge->card, 1);
    charge->measuring = sample_wanted(regions, charge->card) &&
                        measure(regions, charge->card, &charge->before);
    return CUDA_SUCCESS;
}

/*
 * Replaces the reservation by the measured cost. Returns false if that exceeds the limit; it is
 * charged in any case.
 */
static bool correct(struct context_charge *charge) {
    struct regions *regions = charge->regions;
    uint64_t *sample = sample_wanted(regions, charge->card), bytes;
    int64_t after;
    if (!charge->measuring || !sample || !measure(regions, charge->card, &after)) return true;
    after -= charge->before;
    __atomic_store_n(sample, after > 0 ? (uint64_t)after + 1 : 1, __ATOMIC_RELAXED);
    known_cost(regions, charge->card, &bytes);
    uint64_t reserved = charge->bytes, more = bytes > reserved ? bytes - reserved : 0;
    bool allowed = !more || charge_within_limit(regions, charge->card, more);
    charge->bytes = bytes;
    if (bytes < reserved) charge_release(regions, charge->card, reserved - bytes);
    if (!allowed) charge_force(regions, charge->card, more);
    return allowed;
}

static CUresult undo(const struct context_charge *charge, CUcontext context) {
    return charge->primary ? RELAXED(cuDevicePrimaryCtxRelease_v2, charge->device)
                           : RELAXED(cuCtxDestroy_v2, context);
}

static void record(struct context_charge *charge, CUcontext context) {
    struct regions *regions = charge->regions;
    add(regions->process, (struct process_context){.handle = (uint64_t)(uintptr_t)context,
                                                   .bytes = charge->bytes,
                                                   .card = charge->card,
                                                   .device = charge->device,
                                                   .primary = charge->primary});
    EACH_LISTENER(made);
    estimates_add(regions, charge->card, charge->bytes);
    lazy_code_count(regions, charge->card);
}

/* A context that is not allowed is ended again. If that fails, it exists and stays charged. */
static CUresult settle(struct context_charge *charge, CUresult result, CUcontext context) {
    bool made = result == CUDA_SUCCESS, allowed = made && correct(charge);
    if (allowed || (made && undo(charge, context) != CUDA_SUCCESS))
        record(charge, context);
    else
        charge_release(charge->regions, charge->card, charge->bytes);
    return made && !allowed ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult contexts_end(struct context_charge *charge, CUresult result, CUcontext context) {
    if (!charge->counted) {
        result = settle(charge, result, context);
        lazy_code_change_begun(charge->regions, charge->card, -1);
    }
    lock_release(&charge->regions->process->context_lock);
    return result;
}

/* ---- contexts that are found ----------------------------------------------------------------- */

/* Adds a context that was made without a hooked function. It is charged regardless of the limit. */
static unsigned notice(struct regions *regions, CUcontext context, CUdevice device) {
    struct process *process = regions->process;
    struct process_context entry = {.handle = (uint64_t)(uintptr_t)context, .device = device};
    lock_take(&process->context_lock);
    unsigned number = find(process, context);
    if (!number) {
        entry.card = cards_of_device(regions, device);
        if (entry.card != CARD_NONE) known_cost(regions, entry.card, &entry.bytes);
        entry.primary = !find_primary(process, device);
        number = add(process, entry);
        /* Without an entry, it would be charged again for each allocation, and never given back. */
        if (number && entry.card != CARD_NONE) {
            charge_force(regions, entry.card, entry.bytes);
            estimates_add(regions, entry.card, entry.bytes);
            lazy_code_count(regions, entry.card);
        }
    }
    lock_release(&process->context_lock);
    return number;
}

/*
 * The context that owns memory allocated in this one: the primary one for a view, whose memory
 * outlives it.
 */
static unsigned owner_for(struct process *process, unsigned number, CUdevice device) {
    if (__builtin_expect(device_in(process, number - 1) != OF_A_VIEW, 1)) return number;
    unsigned primary = find_primary(process, device);
    return primary ? primary : number;
}

unsigned contexts_current(struct regions *regions, CUdevice device) {
    CUcontext context = NULL;
    if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context) return 0;
    unsigned number = find(regions->process, context);
    if (__builtin_expect(number != 0, 1)) return owner_for(regions->process, number, device);
    return notice(regions, context, device);
}

void contexts_add_view(struct regions *regions, CUcontext context) {
    struct process *process = regions->process;
    if (find(process, context)) return;
    lock_take(&process->context_lock);
    if (!find(process, context))
        add(process, (struct process_context){.handle = (uint64_t)(uintptr_t)context,
                                              .card = CARD_NONE,
                                              .device = OF_A_VIEW});
    lock_release(&process->context_lock);
}

/* ---- contexts that end ----------------------------------------------------------------------- */

struct sweep {
    struct regions *regions;
    unsigned number;
};

static bool dies_with(const struct alloc *alloc, void *context) {
    const struct sweep *sweep = context;
    return alloc->owner == sweep->number && alloc->kind != ALLOC_POOLED;
}

static void give_back(uint64_t key, const struct alloc *alloc, void *context) {
    struct regions *regions = ((struct sweep *)context)->regions;
    if (alloc->kind == ALLOC_ARRAY || alloc->kind == ALLOC_MIPMAP)
        vmm_finish(regions, key, vmm_lift(regions, key), true);
    alloc_kind_release(regions, key, alloc);
}

static uint64_t limits_bytes(const struct process_context *entry) {
    return entry->limits[0] + entry->limits[1] + entry->limits[2];
}

static void rest(struct regions *regions, CUcontext context, bool rests) {
    EACH_LISTENER(rest, regions, context, rests);
}

void contexts_lock(struct regions *regions, CUcontext context) {
    lock_take(&regions->process->context_lock);
    rest(regions, context, true);
}

void contexts_unlock(struct regions *regions, CUcontext context) {
    rest(regions, context, false);
    lock_release(&regions->process->context_lock);
}

CUcontext contexts_primary(struct regions *regions, CUdevice device) {
    return contexts_numbered(regions, find_primary(regions->process, device));
}

void contexts_gone(struct regions *regions, CUcontext context) {
    struct process *process = regions->process;
    struct sweep sweep = {regions, find(process, context)};
    EACH_LISTENER(gone, regions, context);
    if (!sweep.number) return;
    struct process_context *entry = &process->contexts[sweep.number - 1];
    alloc_table_sweep(process, dies_with, give_back, &sweep);
    estimates_release(regions, entry->card, entry->bytes + limits_bytes(entry));
    EACH_LISTENER(returned, regions, entry->device, entry->primary);
    __atomic_store_n(&entry->handle, 0, __ATOMIC_RELEASE);
}

static void check_primary(struct regions *regions, unsigned number) {
    unsigned flags;
    int active = 1;
    CUdevice device = device_in(regions->process, number - 1);
    CUresult result = RELAXED(cuDevicePrimaryCtxGetState, device, &flags, &active);
    if (result != CUDA_SUCCESS || active) return;
    contexts_gone(regions, (CUcontext)(uintptr_t)handle_in(regions->process, number - 1));
}

void contexts_check_primary(struct regions *regions, CUdevice device) {
    unsigned number = find_primary(regions->process, device);
    if (number) check_primary(regions, number);
}

void contexts_check_primaries(struct regions *regions) {
    for (CUdevice device = 0; device < DEVICES_MAX; device++)
        contexts_check_primary(regions, device);
}

/* ---- cuCtxSetLimit --------------------------------------------------------------------------- */

/* The calling thread's context; NULL when there is no room for it in the table. */
static struct process_context *current_entry(struct regions *regions, CUdevice device) {
    unsigned number = contexts_current(regions, device);
    return number ? &regions->process->contexts[number - 1] : NULL;
}

uint64_t contexts_limit(struct regions *regions, CUdevice device, int limit) {
    const struct process_context *entry = current_entry(regions, device);
    return entry ? load_relaxed(&entry->limits[limit]) : 0;
}

/*
 * Raises a limit to `bytes`. The memory is reserved before the new value is stored, so that no
 * thread relies on a value that may be refused. If another thread raises it meanwhile, tries again.
 */
static bool raise_limit(struct regions *regions, struct process_context *entry, int limit, uint64_t bytes,
                        bool (*reserve)(struct regions *, int, uint64_t)) {
    uint64_t *word = &entry->limits[limit], before = load_relaxed(word), seen = before;
    if (before >= bytes) return true;
    bool reserved = reserve(regions, entry->card, bytes - before);
    if (reserved && swap_relaxed(word, &seen, bytes)) {
        estimates_add(regions, entry->card, bytes - before);
        return true;
    }
    if (reserved) charge_release(regions, entry->card, bytes - before);
    return load_relaxed(word) != before && raise_limit(regions, entry, limit, bytes, reserve);
}

/*
 * A context has a single limit of each kind; if another thread changes it meanwhile, that value
 * stays.
 */
bool contexts_set_limit(struct regions *regions, CUdevice device, int limit, uint64_t bytes) {
    struct process_context *entry = current_entry(regions, device);
    if (!entry) return true;
    if (limit == CU_LIMIT_STACK_SIZE) bytes = larger(bytes, load_relaxed(&entry->stack_needed));
    uint64_t before = load_relaxed(&entry->limits[limit]), seen = before;
    if (bytes > before) return raise_limit(regions, entry, limit, bytes, charge_or_wait);
    if (swap_relaxed(&entry->limits[limit], &seen, bytes)) estimates_release(regions, entry->card, before - bytes);
    return true; /* also if another thread has changed it meanwhile */
}

bool contexts_need_stacks(struct regions *regions, CUdevice device, uint64_t bytes) {
    struct process_context *entry = current_entry(regions, device);
    if (!entry) return true;
    uint64_t before = load_relaxed(&entry->stack_needed), raised = bytes;
    while (before < bytes && !swap_relaxed(&entry->stack_needed, &before, bytes)) continue;
    if (raise_limit(regions, entry, CU_LIMIT_STACK_SIZE, bytes, charge_or_reclaim)) return true;
    swap_relaxed(&entry->stack_needed, &raised, before);
    return false;
}
