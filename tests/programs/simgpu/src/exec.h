/* An instantiated graph: its nodes in order, spread over branches that run beside each other. */
#ifndef SIM_EXEC_H
#define SIM_EXEC_H

#include "graph.h"

struct step {
    CUgraphNode source; /* the node of the graph it was made from, for updates */
    CUgraphNodeType type;
    struct work work;
    struct allocation *memory;
    unsigned branch;
    unsigned *waits; /* steps on other branches that it waits for */
    unsigned wait_count;
    bool waited_for;
    bool last_of_branch;
    struct mark *mark; /* during a launch */
};

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph; /* a private copy, for captures and updates */
    struct step *steps;
    unsigned count, branches;
    uint64_t flags;
    CUstream *streams; /* of branches but the first, made by the first launch */
    CUcontext context; /* that they belong to */
    struct mark *done; /* the last launch's end: launches of one graph don't overlap */
};

CUresult exec_check(CUgraphExec exec);
CUresult exec_make(CUgraph graph, uint64_t flags, CUgraphExec *exec);
void exec_end(CUgraphExec exec);

#endif
