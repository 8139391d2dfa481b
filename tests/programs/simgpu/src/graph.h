/* Graphs: pieces of work and their dependencies. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "memory.h"
#include "stream.h"

struct CUgraphNode_st {
    CUgraph graph;
    CUgraphNodeType type;
    struct work work; /* for types that are a single piece of work */
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUgraph child;
    CUevent event;
    struct allocation *memory; /* for an allocation node */
    CUgraphNode *before;       /* the nodes on which it depends */
    size_t befores, afters;
    CUgraphNode next;
    unsigned number; /* used while a graph is put in order */
};

struct CUgraph_st {
    uint32_t magic;
    uint64_t id;
    CUgraphNode first, *end;
    size_t nodes;
    CUgraph original; /* for a clone: the graph that was cloned */
    bool owned;       /* a child graph, which belongs to a node of another graph */
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

/* Sets the work of a kernel's node. If the description names no context, the current one is
 * used. */
CUresult graph_set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *kernel);
/* Adds one node, from the description that the entry point takes. */
CUresult graph_add_kernel(CUgraph graph, const CUgraphNode *before, size_t count,
                          const CUDA_KERNEL_NODE_PARAMS *kernel, CUgraphNode *made);
CUresult graph_add_work(CUgraph graph, const CUgraphNode *before, size_t count,
                        const struct work *work, CUgraphNode *made);
CUresult graph_add_alloc(CUgraph graph, const CUgraphNode *before, size_t count, CUdevice device,
                         uint64_t bytes, CUgraphNode *made);

/* Launches the graph, or adds a node if the stream is capturing. */
CUresult graph_launch(CUgraphExec exec, CUstream stream);

#endif
