/* Stream capture: work launched into a stream is added to a graph and does not run. */
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
    pthread_t thread; /* the thread that began the capture, and its mode (cuStreamBeginCapture) */
    int mode;
    bool given; /* the graph belongs to the caller (cuStreamBeginCaptureToGraph) */
    bool over, spoiled;
};

/* The dependencies of the next node of a capturing stream, or of an event recorded in one. */
struct frontier {
    struct capture *capture;
    CUgraphNode *nodes;
    size_t count;
};

/* The caller holds engine_lock for the functions up to capture_move(). */
CUresult capture_add(CUstream stream, const struct work *work);
void capture_forget_event(CUevent event);
/* Marks the capture as failed; returns `why`. */
CUresult capture_spoil(CUstream stream, CUresult why);
/* Makes the node the stream's only dependency. */
void capture_move(CUstream stream, CUgraphNode node);

/* The caller does not hold engine_lock for these. */
CUresult capture_record(CUstream stream, CUevent event, unsigned flags);
CUresult capture_wait(CUstream stream, CUevent event, unsigned flags);
CUresult capture_alloc(CUstream stream, uint64_t bytes, CUdeviceptr *pointer);
CUresult capture_kernel(CUstream stream, const CUDA_KERNEL_NODE_PARAMS *kernel);
CUresult capture_graph(CUstream stream, CUgraph graph);

#endif
