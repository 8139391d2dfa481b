/* The entry points about a graph's nodes and edges. As in CUDA, a call without an array returns the
 * number of elements, and the rest of a longer array is filled with NULL. */
#include "graph.h"

struct list {
    CUgraphNode *nodes;
    size_t room, count;
};

static void put(struct list *list, CUgraphNode node) {
    if (list->nodes && list->count < list->room) list->nodes[list->count] = node;
    list->count++;
}

static CUresult finish(struct list *list, size_t *count) {
    for (size_t i = list->count; list->nodes && i < list->room; i++) list->nodes[i] = NULL;
    *count = list->nodes && list->room < list->count ? list->room : list->count;
    return CUDA_SUCCESS;
}

static CUresult begin(CUgraph graph, CUgraphNode *nodes, size_t *count, struct list *list) {
    TRY(graph_check(graph));
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *list = (struct list){nodes, nodes ? *count : 0, 0};
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    struct list list;
    TRY(begin(graph, nodes, count, &list));
    for (CUgraphNode node = graph->first; node; node = node->next) put(&list, node);
    return finish(&list, count);
}

API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    struct list list;
    TRY(begin(graph, nodes, count, &list));
    for (CUgraphNode node = graph->first; node; node = node->next)
        if (!node->befores) put(&list, node);
    return finish(&list, count);
}

API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    struct list list;
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    TRY(begin(node->graph, nodes, count, &list));
    for (size_t i = 0; i < node->befores; i++) put(&list, node->before[i]);
    return finish(&list, count);
}

static bool waits_for(CUgraphNode node, CUgraphNode before) {
    for (size_t i = 0; i < node->befores; i++)
        if (node->before[i] == before) return true;
    return false;
}

API CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    struct list list;
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    TRY(begin(node->graph, nodes, count, &list));
    for (CUgraphNode other = node->graph->first; other; other = other->next)
        if (waits_for(other, node)) put(&list, other);
    return finish(&list, count);
}

API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    struct list sources, targets;
    TRY(begin(graph, from, count, &sources));
    TRY(begin(graph, to, count, &targets));
    for (CUgraphNode node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->befores; i++) {
            put(&sources, node->before[i]);
            put(&targets, node);
        }
    finish(&targets, count);
    return finish(&sources, count);
}

API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                    size_t count) {
    TRY(graph_check(graph));
    if (count && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!graph_link(to[i], from[i])) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from,
                                       const CUgraphNode *to, size_t count) {
    TRY(graph_check(graph));
    for (size_t i = 0; i < count; i++)
        if (!graph_unlink(to[i], from[i])) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
