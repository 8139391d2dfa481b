/* Graphs: pieces of work and what each waits for. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "memory.h"
#include "stream.h"

struct CUgraphNode_st {
    CUgraph graph;
    CUgraphNodeType type;
    struct work work; /* of types that are one piece of work */
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUgraph child;
    CUevent event;
    struct allocation *memory; /* of an allocation node */
    CUgraphNode *before;       /* what it waits for */
    size_t befores, afters;
    CUgraphNode next;
    unsigned number; /* while a graph is put in order */
};

struct CUgraph_st {
    uint32_t magic;
    uint64_t id;
    CUgraphNode first, *end;
    size_t nodes;
    CUgraph original; /* of a clone */
    bool owned;       /* a child of another graph's node */
};

CUresult graph_check(CUgraph graph);
CUgraph graph_new(void);
void graph_end(CUgraph graph);
CUgraph graph_clone(CUgraph graph);
CUresult graph_add(CUgraph graph, CUgraphNodeType type, const CUgraphNode *before, size_t count,
                   CUgraphNode *made);
bool graph_link(CUgraphNode node, CUgraphNode before);
bool graph_unlink(CUgraphNode node, CUgraphNode before);
void graph_remove(CUgraphNode node);

/* What a kernel's node is to do. Where the description names no context, it is the current one. */
CUresult graph_set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *kernel);
/* One node with its work, from the description that the entries take. */
CUresult graph_add_kernel(CUgraph graph, const CUgraphNode *before, size_t count,
                          const CUDA_KERNEL_NODE_PARAMS *kernel, CUgraphNode *made);
CUresult graph_add_work(CUgraph graph, const CUgraphNode *before, size_t count,
                        const struct work *work, CUgraphNode *made);
CUresult graph_add_alloc(CUgraph graph, const CUgraphNode *before, size_t count, CUdevice device,
                         uint64_t bytes, CUgraphNode *made);

/* A launch, or in a capturing stream a node. */
CUresult graph_launch(CUgraphExec exec, CUstream stream);

#endif
