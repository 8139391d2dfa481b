/*
 * The tables of functions that lower folders call without depending on them, in the order of the
 * calls. They are initialized statically, since a program may call CUDA before the shim's
 * constructors have run.
 */
#include "memory/cached_memory.h"
#include "memory/contexts.h"
#include "memory/deferred_free.h"
#include "memory/first_use.h"
#include "memory/pools.h"
#include "memory/stacks.h"
#include "memory/vmm.h"
#include "time/costs.h"
#include "time/launch_metering.h"

static bool shrink_pools(struct regions *regions, int card) {
    return pools_shrink(regions, card, POOLS_ALL);
}

static bool settle_handles(struct regions *regions, int card) {
    (void)card;
    return vmm_settle(regions);
}

/* Returns false, since what this releases alone is not worth another attempt to charge. */
static bool settle_pools(struct regions *regions, int card) {
    (void)card;
    if (pools_are_dirty(regions)) pools_settle(regions);
    return false;
}

static bool settle_frees(struct regions *regions, int card) {
    (void)card;
    return deferred_free_settle(regions);
}

cached_memory_releaser *const cached_memory_releasers[] = {shrink_pools, settle_handles, settle_pools,
                                                           settle_frees, NULL};

static void forget_uses(struct regions *regions, CUcontext context) {
    (void)regions, (void)context;
    first_use_forget_all();
}

static void forget_costs(struct regions *regions, CUcontext context) {
    (void)regions, (void)context;
    costs_forget_all();
}

const struct context_listener context_listeners[] = {
    {.gone = forget_uses},
    {.made = costs_forget_all, .gone = forget_costs},
    {.rest = metering_rest, .gone = metering_forget},
    {.rest = deferred_free_rest, .gone = deferred_free_context_gone},
    {.returned = pools_context_gone},
};
const unsigned context_listener_count = sizeof context_listeners / sizeof *context_listeners;

void (*const stacks_new_handle)(const void *handle) = costs_forget;
