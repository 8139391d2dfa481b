/* Instantiated graphs: the nodes in order, distributed over branches that run concurrently. */
#ifndef SIM_GRAPH_EXEC_H
#define SIM_GRAPH_EXEC_H

#include "graph.h"

struct step {
    CUgraphNode source; /* the corresponding node of the source graph, for updates */
    CUgraphNodeType type;
    struct work work;
    struct allocation *memory;
    unsigned branch;
    unsigned *waits; /* steps of other branches on which it depends */
    unsigned wait_count;
    bool waited_for;
    bool last_of_branch;
    struct mark *mark; /* during a launch: the step's end */
};

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph; /* a private copy, for captures and updates */
    struct step *steps;
    unsigned count, branches;
    uint64_t flags;
    CUstream *streams; /* of all branches but the first; made by the first launch */
    CUcontext context; /* the context of these streams */
    struct mark *done; /* end of the last launch, since launches of one graph do not overlap */
};

CUresult exec_check(CUgraphExec exec);
CUresult exec_make(CUgraph graph, uint64_t flags, CUgraphExec *exec);
void exec_end(CUgraphExec exec);

#endif
