#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "launch.h"

enum { MAGIC = 0x47525021 };

static _Atomic uint64_t last_id;

CUresult graph_check(CUgraph graph) {
    TRY(driver_ready());
    return graph && graph->magic == MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUgraph graph_new(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    if (!graph) return NULL;
    graph->magic = MAGIC;
    graph->id = ++last_id;
    graph->end = &graph->first;
    return graph;
}

static void free_node(CUgraphNode node) {
    if (node->child) {
        node->child->owned = false;
        graph_end(node->child);
    }
    free(node->before);
    free(node);
}

void graph_end(CUgraph graph) {
    for (CUgraphNode next, node = graph->first; node; node = next) {
        next = node->next;
        free_node(node);
    }
    graph->magic = 0;
    free(graph);
}

/* ---- nodes and edges ------------------------------------------------------------------------ */

bool graph_link(CUgraphNode node, CUgraphNode before) {
    for (size_t i = 0; i < node->befores; i++)
        if (node->before[i] == before) return false;
    CUgraphNode *longer = realloc(node->before, (node->befores + 1) * sizeof *longer);
    if (!longer || before->graph != node->graph) return false;
    node->before = longer;
    node->before[node->befores++] = before;
    before->afters++;
    return true;
}

bool graph_unlink(CUgraphNode node, CUgraphNode before) {
    for (size_t i = 0; i < node->befores; i++) {
        if (node->before[i] != before) continue;
        node->before[i] = node->before[--node->befores];
        before->afters--;
        return true;
    }
    return false;
}

void graph_remove(CUgraphNode node) {
    CUgraph graph = node->graph;
    for (CUgraphNode other = graph->first; other; other = other->next) graph_unlink(other, node);
    for (size_t i = 0; i < node->befores; i++) node->before[i]->afters--;
    CUgraphNode *link = &graph->first;
    while (*link != node) link = &(*link)->next;
    *link = node->next;
    if (graph->end == &node->next) graph->end = link;
    graph->nodes--;
    free_node(node);
}

CUresult graph_add(CUgraph graph, CUgraphNodeType type, const CUgraphNode *before, size_t count,
                   CUgraphNode *made) {
    TRY(graph_check(graph));
    if (!made || (count && !before)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!before[i] || before[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode node = calloc(1, sizeof *node);
    if (!node) return CUDA_ERROR_OUT_OF_MEMORY;
    node->graph = graph;
    node->type = type;
    *graph->end = node;
    graph->end = &node->next;
    graph->nodes++;
    for (size_t i = 0; i < count; i++) graph_link(node, before[i]);
    *made = node;
    return CUDA_SUCCESS;
}

static CUgraphNodeType type_of(const struct work *work) {
    switch (work->kind) {
    case WORK_KERNEL: return CU_GRAPH_NODE_TYPE_KERNEL;
    case WORK_COPY:
        return work->copy.box.source ? CU_GRAPH_NODE_TYPE_MEMCPY : CU_GRAPH_NODE_TYPE_MEMSET;
    case WORK_CALL: return CU_GRAPH_NODE_TYPE_HOST;
    case WORK_FREE: return CU_GRAPH_NODE_TYPE_MEM_FREE;
    default: return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

CUresult graph_add_work(CUgraph graph, const CUgraphNode *before, size_t count,
                        const struct work *work, CUgraphNode *made) {
    TRY(graph_add(graph, type_of(work), before, count, made));
    (*made)->work = *work;
    return CUDA_SUCCESS;
}

CUresult graph_set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    CUcontext context;
    TRY(context_current(&context));
    TRY(launch_work(kernel, context->card, &node->work));
    node->kernel = *kernel;
    if (!kernel->ctx) node->kernel.ctx = context;
    return CUDA_SUCCESS;
}

CUresult graph_add_kernel(CUgraph graph, const CUgraphNode *before, size_t count,
                          const CUDA_KERNEL_NODE_PARAMS *kernel, CUgraphNode *made) {
    TRY(graph_check(graph));
    TRY(graph_add(graph, CU_GRAPH_NODE_TYPE_KERNEL, before, count, made));
    CUresult result = graph_set_kernel(*made, kernel);
    if (result) graph_remove(*made);
    return result;
}

CUresult graph_add_alloc(CUgraph graph, const CUgraphNode *before, size_t count, CUdevice device,
                         uint64_t bytes, CUgraphNode *made) {
    CUcontext context;
    struct allocation *memory;
    TRY(context_current(&context));
    if (!bytes || device != context->device) return CUDA_ERROR_INVALID_VALUE;
    TRY(graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, before, count, made));
    pthread_mutex_lock(&memory_lock);
    CUresult result = memory_reserve(context, bytes, &memory);
    pthread_mutex_unlock(&memory_lock);
    if (result) graph_remove(*made);
    else (*made)->memory = memory;
    return result;
}

/* ---- copies of graphs ------------------------------------------------------------------------ */

static CUgraphNode copy_node(CUgraph graph, CUgraphNode node) {
    CUgraphNode copy;
    if (graph_add(graph, node->type, NULL, 0, &copy)) return NULL;
    copy->work = node->work;
    copy->kernel = node->kernel;
    copy->event = node->event;
    copy->memory = node->memory;
    if (node->child && (copy->child = graph_clone(node->child))) copy->child->owned = true;
    return copy;
}

static CUgraphNode numbered(CUgraph graph, unsigned number) {
    CUgraphNode node = graph->first;
    while (number--) node = node->next;
    return node;
}

CUgraph graph_clone(CUgraph graph) {
    CUgraph clone = graph_new();
    unsigned number = 0;
    if (!clone) return NULL;
    clone->original = graph;
    for (CUgraphNode node = graph->first; node; node = node->next) {
        node->number = number++;
        if (!copy_node(clone, node)) {
            graph_end(clone);
            return NULL;
        }
    }
    CUgraphNode copy = clone->first;
    for (CUgraphNode node = graph->first; node; node = node->next, copy = copy->next)
        for (size_t i = 0; i < node->befores; i++)
            graph_link(copy, numbered(clone, node->before[i]->number));
    return clone;
}
