/*
 * Instantiation of graphs. Launches of a graph take memory for its allocation nodes from a pool of
 * the device, at most whole pages for each node; that much is reserved when the graph is
 * instantiated. Room for the code and stacks of its kernels is reserved then too.
 */
#include <stdlib.h>

#include "lookup/cards.h"
#include "lookup/relax.h"
#include "memory/alloc_table.h"
#include "memory/charge.h"
#include "memory/first_use.h"
#include "memory/lazy_code.h"
#include "memory/pages.h"
#include "memory/pools.h"
#include "memory/stacks.h"
#include "region/enter.h"
#include "time/costs.h"

#define GRAPH_DEVICES 8 /* handles are aligned, so their low bits can hold the device */
#define DEPTH_MAX 16 /* nesting of child graphs */

struct need {
    struct regions *regions;
    uint64_t bytes[GRAPH_DEVICES];
    bool any, beyond; /* it has allocation nodes; one is on a device beyond GRAPH_DEVICES */
    const void **kernels; /* kernels that were not used before */
    unsigned count, room;
    uint64_t stacks; /* the most bytes of stack that any of them needs */
    struct first_use use;
};

static uint64_t key_of(CUgraphExec exec, CUdevice device) {
    return alloc_key(ALLOC_GRAPH_EXEC, exec) + (uint64_t)device;
}

static void add_graph(struct need *need, CUgraph graph, int depth);

static void add_alloc(struct need *need, CUgraphNode node) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {0};
    if (RELAXED(cuGraphMemAllocNodeGetParams, node, &params) != CUDA_SUCCESS) return;
    CUdevice device = cards_located(&params.pool.location);
    if (device < 0) return;
    need->any = true;
    if (device >= GRAPH_DEVICES)
        need->beyond = true;
    else
        need->bytes[device] += pages_whole(charge_size(params.bytes));
}

static bool is_listed(const struct need *need, const void *work) {
    unsigned i = 0;
    while (i < need->count && need->kernels[i] != work) i++;
    return i < need->count;
}

static bool make_place(struct need *need) {
    if (need->count < need->room) return true;
    unsigned room = 2 * need->room + 16;
    const void **more = realloc(need->kernels, room * sizeof *more);
    if (!more) return false;
    need->kernels = more;
    need->room = room;
    return true;
}

/* Adds the node's function, or kernel of a library. */
static void add_kernel(struct need *need, CUgraphNode node) {
    CUDA_KERNEL_NODE_PARAMS_v2 params = {0};
    if (RELAXED(cuGraphKernelNodeGetParams_v2, node, &params) != CUDA_SUCCESS &&
        RELAXED(cuGraphKernelNodeGetParams, node, &params) != CUDA_SUCCESS)
        return;
    const void *work = params.function ? (const void *)params.function : params.kernel;
    if (is_listed(need, work) || first_use_is_known(need->regions, work) || !make_place(need)) return;
    need->kernels[need->count++] = work;
}

static void add_node(struct need *need, CUgraphNode node, int depth) {
    CUgraph child;
    int type = -1;
    RELAXED(cuGraphNodeGetType, node, &type);
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) add_alloc(need, node);
    if (type == CU_GRAPH_NODE_TYPE_KERNEL) add_kernel(need, node);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < DEPTH_MAX &&
        RELAXED(cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS)
        add_graph(need, child, depth + 1);
}

static void add_graph(struct need *need, CUgraph graph, int depth) {
    size_t count = 0;
    if (RELAXED(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || !count) return;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (nodes && RELAXED(cuGraphGetNodes, graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++) add_node(need, nodes[i], depth);
    free(nodes);
}

static unsigned pool_of(struct regions *regions, CUdevice device, int *card) {
    *card = cards_of_device(regions, device);
    return *card == CARD_NONE ? 0 : pools_graph_number(regions, device, *card);
}

/* Reserves bytes that count as live in the graphs' pool, although nothing is allocated yet. */
static bool reserve(struct regions *regions, unsigned pool, uint64_t bytes, uint64_t *waited) {
    uint64_t reserved = pool ? pools_allocate(regions, pool, bytes, waited) : 0;
    if (!reserved) return false;
    if (pools_allocated(regions, pool, bytes, reserved)) return true;
    pools_cancel(regions, pool, reserved, false);
    return false;
}

static void cancel(struct regions *regions, const struct need *need, CUdevice end) {
    int card;
    for (CUdevice device = 0; device < end; device++)
        if (need->bytes[device])
            pools_freed(regions, pool_of(regions, device, &card), need->bytes[device]);
    pools_settle(regions);
}

static CUresult reserve_all(struct regions *regions, struct need *need) {
    int card;
    if (need->beyond) return CUDA_ERROR_OUT_OF_MEMORY;
    for (CUdevice device = 0; need->any && device < GRAPH_DEVICES; device++) {
        if (!need->bytes[device]) continue;
        unsigned pool = pool_of(regions, device, &card);
        if (reserve(regions, pool, need->bytes[device], &need->use.waited)) continue;
        cancel(regions, need, device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* Reserves room for the kernels' code, and then for the largest stacks that any of them needs. */
static CUresult begin_kernels(struct need *need) {
    CUresult result = first_use_begin_many(&need->use, need->regions, need->count);
    if (result != CUDA_SUCCESS) return result;
    for (unsigned i = 0; i < need->count; i++)
        need->stacks = larger(need->stacks, stacks_wanted(need->regions, need->kernels[i]));
    if (stacks_reserve(need->regions, need->stacks)) return CUDA_SUCCESS;
    return first_use_end(&need->use, CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult begin_kernels_or_cancel(struct need *need) {
    CUresult result = begin_kernels(need);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && need->stacks &&
        lazy_code_await_look(need->regions, need->use.card, PAGE_BYTES, &need->use.waited))
        result = begin_kernels(need);
    if (result != CUDA_SUCCESS) cancel(need->regions, need, GRAPH_DEVICES);
    return result;
}

static CUresult begin(struct regions **regions, struct need *need, CUgraph graph) {
    *need = (struct need){0};
    CUresult result = shim_enter(regions);
    if (result != CUDA_SUCCESS || !*regions) return result;
    need->regions = *regions;
    add_graph(need, graph, 0);
    result = reserve_all(*regions, need);
    if (result == CUDA_SUCCESS) result = begin_kernels_or_cancel(need);
    if (result != CUDA_SUCCESS) free(need->kernels);
    return result;
}

static void end_kernels(struct need *need, CUresult result) {
    first_use_end(&need->use, result);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < need->count; i++)
        first_use_remember(need->regions, need->kernels[i]);
    free(need->kernels);
}

static CUresult end(struct regions *regions, struct need *need, CUresult result,
                    const CUgraphExec *exec) {
    end_kernels(need, result);
    if (result == CUDA_SUCCESS && regions) {
        stacks_forget(regions, *exec);
        costs_forget(*exec);
    }
    if (!need->any) return result;
    if (result != CUDA_SUCCESS) {
        cancel(regions, need, GRAPH_DEVICES);
        return result;
    }
    for (CUdevice device = 0; device < GRAPH_DEVICES; device++) {
        struct alloc alloc = {.bytes = need->bytes[device], .kind = ALLOC_POOLED};
        if (!alloc.bytes) continue;
        alloc.owner = pool_of(regions, device, &alloc.card);
        alloc_table_put(regions->process, key_of(*exec, device), alloc);
    }
    return result;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
                                   size_t bytes) {
    struct regions *regions;
    struct need need;
    CUresult result = begin(&regions, &need, graph);
    if (result != CUDA_SUCCESS) return result;
    return end(regions, &need, REAL(cuGraphInstantiate)(exec, graph, node, log, bytes), exec);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node,
                                      char *log, size_t bytes) {
    struct regions *regions;
    struct need need;
    CUresult result = begin(&regions, &need, graph);
    if (result != CUDA_SUCCESS) return result;
    return end(regions, &need, REAL(cuGraphInstantiate_v2)(exec, graph, node, log, bytes), exec);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                            unsigned long long flags) {
    struct regions *regions;
    struct need need;
    CUresult result = begin(&regions, &need, graph);
    if (result != CUDA_SUCCESS) return result;
    return end(regions, &need, REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params) {
    struct regions *regions;
    struct need need;
    CUresult result = begin(&regions, &need, graph);
    if (result != CUDA_SUCCESS) return result;
    return end(regions, &need, REAL(cuGraphInstantiateWithParams)(exec, graph, params), exec);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params) {
    struct regions *regions;
    struct need need;
    CUresult result = begin(&regions, &need, graph);
    if (result != CUDA_SUCCESS) return result;
    return end(regions, &need, REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, params), exec);
}

/*
 * Takes the graph's entries out of the table, before the driver may reuse its handle. finish() puts
 * them back if the graph is not destroyed.
 */
static void lift(struct regions *regions, CUgraphExec exec, struct alloc *allocs) {
    for (CUdevice device = 0; device < GRAPH_DEVICES; device++)
        if (!alloc_table_take(regions->process, key_of(exec, device), &allocs[device]))
            allocs[device].bytes = 0;
}

/* Makes the driver release what the graphs' pool keeps, since nothing else can use it. */
static void finish(struct regions *regions, CUgraphExec exec, struct alloc *allocs,
                   CUresult result) {
    for (CUdevice device = 0; device < GRAPH_DEVICES; device++) {
        if (!allocs[device].bytes) continue;
        if (result != CUDA_SUCCESS) {
            alloc_table_put(regions->process, key_of(exec, device), allocs[device]);
            continue;
        }
        pools_graph_gone(regions, allocs[device].owner, allocs[device].bytes);
        RELAXED(cuDeviceGraphMemTrim, device);
        pools_settle(regions);
    }
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct alloc allocs[GRAPH_DEVICES];
    struct regions *regions = shim_known();
    if (!regions) return REAL(cuGraphExecDestroy)(exec);
    lift(regions, exec, allocs);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    finish(regions, exec, allocs, result);
    return result;
}
