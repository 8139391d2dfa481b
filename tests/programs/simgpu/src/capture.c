#include "capture.h"

#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

static uint64_t last_id;
static _Atomic unsigned under_way; /* captures in progress, including those that ended because
                                      their stream was destroyed */
static __thread int own_mode;

/* ---- frontiers ------------------------------------------------------------------------------ */

static struct frontier *frontier_new(struct capture *capture, const CUgraphNode *nodes,
                                     size_t count) {
    struct frontier *frontier = calloc(1, sizeof *frontier);
    CUgraphNode *copy = calloc(count + 1, sizeof *copy);
    if (!frontier || !copy) abort();
    if (count) memcpy(copy, nodes, count * sizeof *copy);
    *frontier = (struct frontier){capture, copy, count};
    capture->users++;
    return frontier;
}

static void frontier_end(struct frontier *frontier) {
    if (!frontier) return;
    if (--frontier->capture->users == 0) free(frontier->capture);
    free(frontier->nodes);
    free(frontier);
}

static void frontier_set(struct frontier *frontier, const CUgraphNode *nodes, size_t count) {
    CUgraphNode *copy = calloc(count + 1, sizeof *copy);
    if (!copy) abort();
    if (count) memcpy(copy, nodes, count * sizeof *copy);
    free(frontier->nodes);
    frontier->nodes = copy;
    frontier->count = count;
}

static void frontier_add(struct frontier *frontier, CUgraphNode node) {
    for (size_t i = 0; i < frontier->count; i++)
        if (frontier->nodes[i] == node) return;
    frontier->nodes = realloc(frontier->nodes, (frontier->count + 1) * sizeof *frontier->nodes);
    if (!frontier->nodes) abort();
    frontier->nodes[frontier->count++] = node;
}

void capture_move(CUstream stream, CUgraphNode node) {
    frontier_set(stream->capture, &node, 1);
}

CUresult capture_spoil(CUstream stream, CUresult why) {
    stream->capture->capture->spoiled = true;
    return why;
}

void capture_forget_event(CUevent event) {
    frontier_end(event->captured);
    event->captured = NULL;
}

/* ---- calls for a stream that is capturing ------------------------------------------------------ */

static CUresult usable(CUstream stream) {
    return stream->capture->capture->spoiled ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

/* Makes the new node the stream's only dependency. */
static CUresult moved(CUstream stream, CUresult result, const CUgraphNode *node) {
    if (result) return capture_spoil(stream, result);
    capture_move(stream, *node);
    return CUDA_SUCCESS;
}

CUresult capture_add(CUstream stream, const struct work *work) {
    struct frontier *at = stream->capture;
    CUgraphNode node;
    TRY(usable(stream));
    CUresult result = graph_add_work(at->capture->graph, at->nodes, at->count, work, &node);
    return moved(stream, result, &node);
}

CUresult capture_kernel(CUstream stream, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    struct frontier *at = stream->capture;
    CUgraphNode node;
    TRY(usable(stream));
    CUresult result = graph_add_kernel(at->capture->graph, at->nodes, at->count, kernel, &node);
    return moved(stream, result, &node);
}

CUresult capture_alloc(CUstream stream, uint64_t bytes, CUdeviceptr *pointer) {
    struct frontier *at = stream->capture;
    CUdevice device = stream->context->device;
    CUgraphNode node;
    TRY(usable(stream));
    CUresult result =
        graph_add_alloc(at->capture->graph, at->nodes, at->count, device, bytes, &node);
    if (!result) *pointer = node->memory->base;
    return moved(stream, result, &node);
}

static CUresult add_child(CUgraph graph, const struct frontier *at, CUgraph child,
                          CUgraphNode *node) {
    TRY(graph_add(graph, CU_GRAPH_NODE_TYPE_GRAPH, at->nodes, at->count, node));
    (*node)->child = graph_clone(child);
    if (!(*node)->child) return CUDA_ERROR_OUT_OF_MEMORY;
    (*node)->child->owned = true;
    return CUDA_SUCCESS;
}

CUresult capture_graph(CUstream stream, CUgraph graph) {
    CUgraphNode node;
    TRY(usable(stream));
    CUresult result = add_child(stream->capture->capture->graph, stream->capture, graph, &node);
    return moved(stream, result, &node);
}

CUresult capture_record(CUstream stream, CUevent event, unsigned flags) {
    if (flags) return CUDA_ERROR_NOT_SUPPORTED; /* external events in graphs are not simulated */
    TRY(usable(stream));
    pthread_mutex_lock(&engine_lock);
    capture_forget_event(event);
    event->captured =
        frontier_new(stream->capture->capture, stream->capture->nodes, stream->capture->count);
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

static CUresult join(CUstream stream, const struct frontier *other) {
    if (!stream->capture) {
        stream->capture = frontier_new(other->capture, other->nodes, other->count);
        return CUDA_SUCCESS;
    }
    if (stream->capture->capture != other->capture)
        return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    for (size_t i = 0; i < other->count; i++) frontier_add(stream->capture, other->nodes[i]);
    return CUDA_SUCCESS;
}

CUresult capture_wait(CUstream stream, CUevent event, unsigned flags) {
    if (flags) return CUDA_ERROR_NOT_SUPPORTED;
    if (event->captured && event->captured->capture->over) return CUDA_ERROR_CAPTURED_EVENT;
    if (!event->captured) return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    pthread_mutex_lock(&engine_lock);
    CUresult result = join(stream, event->captured);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

/* ---- calls that a capture forbids ----------------------------------------------------------- */

static bool forbids(const struct capture *capture) {
    if (pthread_equal(capture->thread, pthread_self())) return capture->mode != MODE_RELAXED;
    return capture->mode == MODE_GLOBAL && own_mode == MODE_GLOBAL;
}

CUresult capture_permits(void) {
    CUresult result = CUDA_SUCCESS;
    if (!under_way || own_mode == MODE_RELAXED) return CUDA_SUCCESS;
    pthread_mutex_lock(&engine_lock);
    for (CUstream each = engine_streams; each; each = each->next)
        if (each->capture && forbids(each->capture->capture))
            result = capture_spoil(each, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

/* ---- begin and end -------------------------------------------------------------------------- */

static CUresult begin(CUstream handle, CUgraph graph, const CUgraphNode *nodes, size_t count,
                      int mode) {
    CUstream stream;
    if (mode < MODE_GLOBAL || mode > MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    TRY(stream_get(handle, &stream));
    if (stream->kind == STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = calloc(1, sizeof *capture);
    if (!capture) return CUDA_ERROR_OUT_OF_MEMORY;
    capture->given = graph != NULL;
    capture->graph = graph ? graph : graph_new();
    capture->origin = stream;
    capture->id = ++last_id;
    capture->mode = mode;
    capture->thread = pthread_self();
    pthread_mutex_lock(&engine_lock);
    stream->capture = frontier_new(capture, nodes, count);
    under_way++;
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

TWINS(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int mode), (stream, mode)) {
    return begin(stream, NULL, NULL, 0, mode);
}

TWINS(cuStreamBeginCapture, _ptsz, (CUstream stream), (stream)) {
    return begin(stream, NULL, NULL, 0, MODE_GLOBAL);
}

TWINS(cuStreamBeginCaptureToGraph, _ptsz,
      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges,
       size_t count, int mode),
      (stream, graph, nodes, edges, count, mode)) {
    (void)edges;
    TRY(graph_check(graph));
    return begin(stream, graph, nodes, count, mode);
}

static bool in_frontier(const struct frontier *frontier, CUgraphNode node) {
    for (size_t i = 0; i < frontier->count; i++)
        if (frontier->nodes[i] == node) return true;
    return false;
}

/* Whether every stream that joined the capture was joined back into the stream where it began, as
 * cuStreamEndCapture requires. */
static bool all_joined(const struct capture *capture, const struct frontier *origin) {
    for (CUgraphNode node = capture->graph->first; node; node = node->next)
        if (!node->afters && !in_frontier(origin, node)) return false;
    return true;
}

/* Ends the capture for every stream that took part. */
static void leave(struct capture *capture) {
    capture->over = true;
    under_way--;
    capture->users++;
    for (CUstream each = engine_streams; each; each = each->next) {
        if (!each->capture || each->capture->capture != capture) continue;
        struct frontier *left = each->capture;
        each->capture = NULL;
        frontier_end(left);
    }
    if (--capture->users == 0) free(capture);
}

TWINS(cuStreamEndCapture, _ptsz, (CUstream handle, CUgraph *graph), (handle, graph)) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!graph || !stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = stream->capture->capture;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    CUresult result = capture->spoiled ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    pthread_mutex_lock(&engine_lock);
    if (!result && !capture->given && !all_joined(capture, stream->capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *graph = result ? NULL : capture->graph;
    if (result && !capture->given) graph_end(capture->graph);
    leave(capture);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

/* ---- queries -------------------------------------------------------------------------------- */

enum { STATUS_NONE, STATUS_ACTIVE, STATUS_INVALIDATED };

static int status_of(CUstream stream) {
    if (!stream->capture) return STATUS_NONE;
    return stream->capture->capture->spoiled ? STATUS_INVALIDATED : STATUS_ACTIVE;
}

TWINS(cuStreamIsCapturing, _ptsz, (CUstream handle, int *status), (handle, status)) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

TWINS(cuStreamGetCaptureInfo_v2, _ptsz,
      (CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
       size_t *count),
      (handle, status, id, graph, nodes, count)) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
    if (*status != STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id) *id = stream->capture->capture->id;
    if (graph) *graph = stream->capture->capture->graph;
    if (nodes) *nodes = stream->capture->nodes;
    if (count) *count = stream->capture->count;
    return CUDA_SUCCESS;
}

TWINS(cuStreamGetCaptureInfo_v3, _ptsz,
      (CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
       const CUgraphEdgeData **edges, size_t *count),
      (handle, status, id, graph, nodes, edges, count)) {
    if (edges) *edges = NULL;
    return cuStreamGetCaptureInfo_v2(handle, status, id, graph, nodes, count);
}

TWINS(cuStreamGetCaptureInfo, _ptsz, (CUstream handle, int *status, uint64_t *id),
      (handle, status, id)) {
    return cuStreamGetCaptureInfo_v2(handle, status, id, NULL, NULL, NULL);
}

TWINS(cuStreamUpdateCaptureDependencies, _ptsz,
      (CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags),
      (handle, nodes, count, flags)) {
    enum { ADD, REPLACE };
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!stream->capture || flags > REPLACE) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags == REPLACE) frontier_set(stream->capture, nodes, count);
    for (size_t i = 0; flags == ADD && i < count; i++) frontier_add(stream->capture, nodes[i]);
    return CUDA_SUCCESS;
}

TWINS(cuStreamUpdateCaptureDependencies_v2, _ptsz,
      (CUstream handle, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
       unsigned flags),
      (handle, nodes, edges, count, flags)) {
    (void)edges;
    return cuStreamUpdateCaptureDependencies(handle, nodes, count, flags);
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    if (!mode || *mode < MODE_GLOBAL || *mode > MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    int before = own_mode;
    own_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
