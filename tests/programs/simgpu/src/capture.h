/* Stream capture: work is put into a graph instead of being done. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "event.h"
#include "graph.h"

/* One capture, shared by the streams that joined it. */
struct capture {
    unsigned users;
    uint64_t id;
    CUgraph graph;
    CUstream origin;
    pthread_t thread; /* which began it, and how: as cuStreamBeginCapture names the modes */
    int mode;
    bool given; /* the graph is the caller's: cuStreamBeginCaptureToGraph */
    bool over, spoiled;
};

/* Where a capturing stream, or an event recorded in one, is: the nodes that come before. */
struct frontier {
    struct capture *capture;
    CUgraphNode *nodes;
    size_t count;
};

/* engine_lock held by the caller of these. */
CUresult capture_add(CUstream stream, const struct work *work);
void capture_forget_event(CUevent event);
/* The capture cannot succeed any more; returns `why`. */
CUresult capture_spoil(CUstream stream, CUresult why);
/* The node becomes all that the stream waits for. */
void capture_move(CUstream stream, CUgraphNode node);

/* These without it. */
CUresult capture_record(CUstream stream, CUevent event, unsigned flags);
CUresult capture_wait(CUstream stream, CUevent event, unsigned flags);
CUresult capture_alloc(CUstream stream, uint64_t bytes, CUdeviceptr *pointer);
CUresult capture_kernel(CUstream stream, const CUDA_KERNEL_NODE_PARAMS *kernel);
CUresult capture_graph(CUstream stream, CUgraph graph);

#endif
