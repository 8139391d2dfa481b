#include "graph_exec.h"

#include <stdlib.h>

#include "capture.h"
#include "launch.h"

enum { MAGIC = 0x47455821 };
#define NONE UINT32_MAX

CUresult exec_check(CUgraphExec exec) {
    TRY(driver_ready());
    return exec && exec->magic == MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- flattening: the nodes of child graphs replace the child graph's node -------------------- */

struct flat {
    CUgraphNode *nodes; /* NULL: the end of a child graph, which depends on all of its nodes */
    unsigned **before, *befores;
    unsigned count, room;
};

static bool grow(struct flat *flat) {
    unsigned room = flat->room ? flat->room * 2 : 64;
    void *nodes = realloc(flat->nodes, room * sizeof *flat->nodes);
    if (nodes) flat->nodes = nodes;
    void *before = realloc(flat->before, room * sizeof *flat->before);
    if (before) flat->before = before;
    void *befores = realloc(flat->befores, room * sizeof *flat->befores);
    if (befores) flat->befores = befores;
    if (!nodes || !before || !befores) return false;
    flat->room = room;
    return true;
}

/* Appends an entry and takes over `before`. Returns the entry's number, or NONE. */
static unsigned append(struct flat *flat, CUgraphNode node, unsigned *before, unsigned befores) {
    if (flat->count == flat->room && !grow(flat)) return NONE;
    flat->nodes[flat->count] = node;
    flat->before[flat->count] = before;
    flat->befores[flat->count] = befores;
    return flat->count++;
}

static unsigned *numbers(size_t count) {
    return calloc(count ? count : 1, sizeof(unsigned));
}

static bool flatten(struct flat *flat, CUgraph graph, unsigned entry);

/* A node that depends on a child graph depends on all of its leaves. */
static unsigned flatten_child(struct flat *flat, CUgraphNode node, unsigned entry) {
    CUgraph child = node->child;
    if (!flatten(flat, child, entry)) return NONE;
    unsigned *leaves = numbers(child->nodes + 1), count = 0;
    if (!leaves) return NONE;
    for (CUgraphNode each = child->first; each; each = each->next)
        if (!each->afters) leaves[count++] = each->number;
    if (!count) leaves[count++] = entry;
    return append(flat, NULL, leaves, count);
}

static bool flatten_node(struct flat *flat, CUgraphNode node, unsigned entry) {
    unsigned *before = numbers(node->befores + 1), count = 0;
    if (!before) return false;
    for (size_t i = 0; i < node->befores; i++) before[count++] = node->before[i]->number;
    if (!count && entry != NONE) before[count++] = entry;
    if (!node->child) {
        node->number = append(flat, node, before, count);
        return node->number != NONE;
    }
    unsigned start = append(flat, NULL, before, count);
    node->number = start == NONE ? NONE : flatten_child(flat, node, start);
    return node->number != NONE;
}

static bool ready(CUgraphNode node) {
    for (size_t i = 0; i < node->befores; i++)
        if (node->before[i]->number == NONE) return false;
    return node->number == NONE;
}

/* Appends the graph's nodes in an order in which each follows its dependencies. Returns false for a
 * graph with a cycle. */
static bool flatten(struct flat *flat, CUgraph graph, unsigned entry) {
    size_t left = graph->nodes;
    for (CUgraphNode node = graph->first; node; node = node->next) node->number = NONE;
    for (bool moved = true; left && moved;) {
        moved = false;
        for (CUgraphNode node = graph->first; node; node = node->next) {
            if (!ready(node)) continue;
            if (!flatten_node(flat, node, entry)) return false;
            moved = true;
            left--;
        }
    }
    return left == 0;
}

/* ---- branches ------------------------------------------------------------------------------- */

/* Puts a step into the branch of its first dependency, unless another step already follows
 * there. */
static void place(CUgraphExec exec, unsigned number, const unsigned *before, unsigned befores) {
    struct step *step = &exec->steps[number];
    bool placed = false;
    step->waits = numbers(befores);
    for (unsigned i = 0; i < befores; i++) {
        struct step *other = &exec->steps[before[i]];
        if (!placed && other->last_of_branch) {
            step->branch = other->branch;
            other->last_of_branch = false;
            placed = true;
        } else {
            step->waits[step->wait_count++] = before[i];
            other->waited_for = true;
        }
    }
    if (!placed) step->branch = exec->branches++;
    step->last_of_branch = true;
}

static void take_steps(CUgraphExec exec, struct flat *flat) {
    exec->steps = calloc(flat->count + 1, sizeof *exec->steps);
    exec->count = flat->count;
    for (unsigned i = 0; i < flat->count; i++) {
        CUgraphNode node = flat->nodes[i];
        struct step *step = &exec->steps[i];
        step->source = node;
        step->type = node ? node->type : CU_GRAPH_NODE_TYPE_EMPTY;
        if (node) step->work = node->work;
        if (node) step->memory = node->memory;
        place(exec, i, flat->before[i], flat->befores[i]);
    }
}

static CUresult prepare_kernels(const struct flat *flat) {
    for (unsigned i = 0; i < flat->count; i++) {
        CUgraphNode node = flat->nodes[i];
        if (node && node->type == CU_GRAPH_NODE_TYPE_KERNEL)
            TRY(launch_prepare(&node->kernel, node->kernel.ctx));
    }
    return CUDA_SUCCESS;
}

CUresult exec_make(CUgraph graph, uint64_t flags, CUgraphExec *made) {
    struct flat flat = {0};
    TRY(graph_check(graph));
    if (!made) return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (!exec) return CUDA_ERROR_OUT_OF_MEMORY;
    bool well = flatten(&flat, graph, NONE);
    CUresult result = well ? prepare_kernels(&flat) : CUDA_ERROR_INVALID_VALUE;
    exec->magic = MAGIC;
    exec->flags = flags;
    if (!result) take_steps(exec, &flat);
    exec->graph = result ? NULL : graph_clone(graph);
    for (unsigned i = 0; i < flat.count; i++) free(flat.before[i]);
    free(flat.nodes), free(flat.before), free(flat.befores);
    if (result) {
        free(exec);
        return result;
    }
    *made = exec;
    return CUDA_SUCCESS;
}

void exec_end(CUgraphExec exec) {
    pthread_mutex_lock(&engine_lock);
    mark_drop(exec->done);
    for (unsigned i = 1; exec->streams && i < exec->branches; i++) stream_retire(exec->streams[i]);
    pthread_mutex_unlock(&engine_lock);
    for (unsigned i = 0; i < exec->count; i++) free(exec->steps[i].waits);
    free(exec->steps), free(exec->streams);
    graph_end(exec->graph);
    exec->magic = 0;
    free(exec);
}

/* ---- launch --------------------------------------------------------------------------------- */

/* Makes the graph's own allocations valid before any of its nodes runs. */
static CUresult back_memory(CUgraphExec exec) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    for (unsigned i = 0; i < exec->count && !result; i++) {
        struct allocation *memory = exec->steps[i].memory;
        if (!memory) continue;
        result = memory->idle ? memory_back(memory) : CUDA_ERROR_INVALID_VALUE;
        if (!result) memory->idle = false;
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

static void open_streams(CUgraphExec exec, CUcontext context) {
    if (exec->branches < 2 || (exec->streams && exec->context == context)) return;
    free(exec->streams);
    exec->streams = calloc(exec->branches, sizeof *exec->streams);
    exec->context = context;
    for (unsigned i = 1; i < exec->branches; i++)
        exec->streams[i] = stream_new(context, STREAM_FREE_RUNNING);
}

static void append_wait(CUstream stream, struct mark *mark) {
    if (mark) stream_append(stream, (struct work){.kind = WORK_WAIT, .mark = mark_keep(mark)});
}

static void run_step(CUgraphExec exec, struct step *step, CUstream stream) {
    for (unsigned i = 0; i < step->wait_count; i++)
        append_wait(stream, exec->steps[step->waits[i]].mark);
    if (step->work.kind != WORK_EMPTY) stream_append(stream, step->work);
    if (step->waited_for) step->mark = stream_mark(stream);
}

static CUstream branch_stream(CUgraphExec exec, unsigned branch, CUstream launch) {
    return branch ? exec->streams[branch] : launch;
}

/* The caller holds engine_lock. */
static void run(CUgraphExec exec, CUstream launch) {
    open_streams(exec, launch->context);
    append_wait(launch, exec->done);
    for (unsigned i = 1; i < exec->branches; i++) stream_join(exec->streams[i], launch);
    for (unsigned i = 0; i < exec->count; i++) {
        struct step *step = &exec->steps[i];
        run_step(exec, step, branch_stream(exec, step->branch, launch));
    }
    for (unsigned i = 1; i < exec->branches; i++) stream_join(launch, exec->streams[i]);
    for (unsigned i = 0; i < exec->count; i++) {
        mark_drop(exec->steps[i].mark);
        exec->steps[i].mark = NULL;
    }
    mark_drop(exec->done);
    exec->done = stream_mark(launch);
}

CUresult graph_launch(CUgraphExec exec, CUstream stream) {
    if (stream->capture) return capture_graph(stream, exec->graph);
    TRY(back_memory(exec));
    CUresult result = stream_enter(stream);
    if (!result) run(exec, stream);
    stream_leave();
    return result;
}
