/* The entry points that build and query graphs. */
#include <string.h>

#include "copy.h"
#include "graph.h"
#include "launch.h"

static CUresult check_node(CUgraphNode node) {
    TRY(driver_ready());
    return node ? graph_check(node->graph) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    TRY(driver_ready());
    if (!graph || flags) return CUDA_ERROR_INVALID_VALUE;
    *graph = graph_new();
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuGraphDestroy(CUgraph graph) {
    TRY(graph_check(graph));
    if (graph->owned) return CUDA_ERROR_INVALID_VALUE;
    graph_end(graph);
    return CUDA_SUCCESS;
}

API CUresult cuGraphClone(CUgraph *clone, CUgraph graph) {
    TRY(graph_check(graph));
    *clone = graph_clone(graph);
    return *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The nodes of a clone have the order of their originals. */
API CUresult cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode node, CUgraph clone) {
    TRY(check_node(node));
    TRY(graph_check(clone));
    if (clone->original != node->graph) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode copy = clone->first;
    for (CUgraphNode each = node->graph->first; each && copy; each = each->next, copy = copy->next)
        if (each == node) {
            *found = copy;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- adding nodes --------------------------------------------------------------------------- */

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                     size_t count, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    if (!kernel) return CUDA_ERROR_INVALID_VALUE;
    return graph_add_kernel(graph, before, count, kernel, node);
}

/* Converts the first version's parameters, which end before the kernel handle. */
static CUDA_KERNEL_NODE_PARAMS widen(const CUDA_KERNEL_NODE_PARAMS *first_version) {
    CUDA_KERNEL_NODE_PARAMS whole = {0};
    memcpy(&whole, first_version, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return whole;
}

API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                  size_t count, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    if (!kernel) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS whole = widen(kernel);
    return graph_add_kernel(graph, before, count, &whole, node);
}

API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                  size_t count, const CUDA_MEMCPY3D *copy, CUcontext context) {
    struct work work;
    (void)context;
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    TRY(copy_work(copy, &work, NULL));
    return graph_add_work(graph, before, count, &work, node);
}

API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                  size_t count, const CUDA_MEMSET_NODE_PARAMS *set,
                                  CUcontext context) {
    struct work work;
    (void)context;
    TRY(driver_ready());
    if (!set) return CUDA_ERROR_INVALID_VALUE;
    TRY(set_work(set, &work));
    return graph_add_work(graph, before, count, &work, node);
}

API CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                size_t count, const CUDA_HOST_NODE_PARAMS *host) {
    if (!host || !host->fn) return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = WORK_CALL, .call = {host->fn, host->userData}};
    return graph_add_work(graph, before, count, &work, node);
}

API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                 size_t count) {
    return graph_add(graph, CU_GRAPH_NODE_TYPE_EMPTY, before, count, node);
}

API CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                      size_t count, CUgraph child) {
    TRY(graph_check(child));
    TRY(graph_add(graph, CU_GRAPH_NODE_TYPE_GRAPH, before, count, node));
    (*node)->child = graph_clone(child);
    if (!(*node)->child) return CUDA_ERROR_OUT_OF_MEMORY;
    (*node)->child->owned = true;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                    size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *alloc) {
    if (!alloc || alloc->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(graph_add_alloc(graph, before, count, alloc->poolProps.location.id, alloc->bytesize, node));
    alloc->dptr = (*node)->memory->base;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                   size_t count, CUdeviceptr pointer) {
    struct work work = {.kind = WORK_FREE, .pointer = pointer};
    return graph_add_work(graph, before, count, &work, node);
}

static CUresult add_any(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                        CUgraphNodeParams *any) {
    switch (any->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode_v2(node, graph, before, count, &any->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(node, graph, before, count, &any->memcpy.copyParams, NULL);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphAddMemsetNode(node, graph, before, count, &any->memset, NULL);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphAddHostNode(node, graph, before, count, &any->host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(node, graph, before, count, any->graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(node, graph, before, count);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, before, count, &any->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(node, graph, before, count, any->dptr);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                            size_t count, CUgraphNodeParams *any) {
    return any ? add_any(node, graph, before, count, any) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                               const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *any) {
    (void)edges;
    return cuGraphAddNode(node, graph, before, count, any);
}

API CUresult cuGraphDestroyNode(CUgraphNode node) {
    TRY(check_node(node));
    graph_remove(node);
    return CUDA_SUCCESS;
}

/* ---- parameters ----------------------------------------------------------------------------- */

API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *kernel) {
    TRY(check_node(node));
    if (!kernel || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    *kernel = node->kernel;
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *kernel) {
    CUDA_KERNEL_NODE_PARAMS whole;
    if (!kernel) return CUDA_ERROR_INVALID_VALUE;
    TRY(cuGraphKernelNodeGetParams_v2(node, &whole));
    memcpy(kernel, &whole, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS *kernel) {
    TRY(check_node(node));
    if (!kernel || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    return graph_set_kernel(node, kernel);
}

API CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    if (!kernel) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS whole = widen(kernel);
    return cuGraphKernelNodeSetParams_v2(node, &whole);
}

API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *alloc) {
    TRY(check_node(node));
    if (!alloc || !node->memory) return CUDA_ERROR_INVALID_VALUE;
    *alloc =
        (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = node->memory->bytes, .dptr = node->memory->base};
    alloc->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, node->memory->device};
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer) {
    TRY(check_node(node));
    if (!pointer || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE) return CUDA_ERROR_INVALID_VALUE;
    *pointer = node->work.pointer;
    return CUDA_SUCCESS;
}

API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    TRY(check_node(node));
    if (!graph || !node->child) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    TRY(check_node(node));
    if (!type) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}
