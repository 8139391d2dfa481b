/* The entry points that instantiate, update and launch graphs. */
#include <string.h>

#include "graph_exec.h"
#include "launch.h"

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    return exec_make(graph, flags, exec);
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *wrong, char *log,
                            size_t room) {
    if (wrong) *wrong = NULL;
    if (log && room) *log = 0;
    return exec_make(graph, 0, exec);
}

API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *wrong, char *log,
                                size_t room) {
    return instantiate(exec, graph, wrong, log, room);
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *wrong, char *log,
                                   size_t room) {
    return instantiate(exec, graph, wrong, log, room);
}

TWINS(cuGraphInstantiateWithParams, _ptsz,
      (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *how), (exec, graph, how)) {
    enum { SUCCESS, ERROR };
    if (!how) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = exec_make(graph, how->flags, exec);
    how->hErrNode_out = NULL;
    how->result_out = result ? ERROR : SUCCESS;
    return result;
}

API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    TRY(exec_check(exec));
    exec_end(exec);
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags) {
    TRY(exec_check(exec));
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

TWINS(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream handle), (exec, handle)) {
    CUstream stream;
    TRY(exec_check(exec));
    TRY(stream_get(handle, &stream));
    return graph_launch(exec, stream);
}

TWINS(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream handle), (exec, handle)) {
    CUstream stream;
    TRY(exec_check(exec));
    return stream_get(handle, &stream);
}

/* ---- updates of an instantiated graph ---------------------------------------------------------- */

static struct step *step_of(CUgraphExec exec, CUgraphNode node) {
    for (unsigned i = 0; i < exec->count; i++)
        if (exec->steps[i].source == node) return &exec->steps[i];
    return NULL;
}

API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS *kernel) {
    CUdevice device;
    TRY(exec_check(exec));
    TRY(context_device(&device));
    struct step *step = step_of(exec, node);
    if (!kernel || !step || step->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(launch_prepare(kernel, kernel->ctx));
    return launch_work(kernel, driver.card[device], &step->work);
}

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_KERNEL_NODE_PARAMS *kernel) {
    CUDA_KERNEL_NODE_PARAMS whole = {0};
    if (!kernel) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&whole, kernel, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return cuGraphExecKernelNodeSetParams_v2(exec, node, &whole);
}

static bool same_shape(CUgraphExec exec, CUgraphExec other) {
    if (exec->count != other->count || exec->branches != other->branches) return false;
    for (unsigned i = 0; i < exec->count; i++) {
        const struct step *a = &exec->steps[i], *b = &other->steps[i];
        if (a->type != b->type || a->branch != b->branch || a->wait_count != b->wait_count)
            return false;
        if (memcmp(a->waits, b->waits, a->wait_count * sizeof *a->waits) != 0) return false;
    }
    return true;
}

static CUresult update(CUgraphExec exec, CUgraph graph) {
    CUgraphExec other;
    TRY(exec_check(exec));
    TRY(exec_make(graph, 0, &other));
    bool same = same_shape(exec, other);
    for (unsigned i = 0; same && i < exec->count; i++) {
        exec->steps[i].source = other->steps[i].source;
        exec->steps[i].work = other->steps[i].work;
        exec->steps[i].memory = other->steps[i].memory;
    }
    exec_end(other);
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

enum { UPDATE_SUCCESS = 0, UPDATE_TOPOLOGY_CHANGED = 2 };

API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                  CUgraphExecUpdateResultInfo *info) {
    CUresult result = update(exec, graph);
    if (info)
        *info = (CUgraphExecUpdateResultInfo){result ? UPDATE_TOPOLOGY_CHANGED : UPDATE_SUCCESS,
                                              NULL, NULL};
    return result;
}

API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *wrong, int *how) {
    CUresult result = update(exec, graph);
    if (wrong) *wrong = NULL;
    if (how) *how = result ? UPDATE_TOPOLOGY_CHANGED : UPDATE_SUCCESS;
    return result;
}

/* ---- memory that graphs keep ------------------------------------------------------------------
 */

enum { USED_CURRENT, USED_HIGH, RESERVED_CURRENT, RESERVED_HIGH };

API CUresult cuDeviceGraphMemTrim(CUdevice device) {
    TRY(capture_permits());
    TRY(driver_device(device));
    pthread_mutex_lock(&memory_lock);
    for (struct allocation *each = memory_first(); each; each = each->next)
        if (each->kind == MEMORY_GRAPH && each->device == device && each->idle && each->charged)
            memory_unback(each);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

/* High-water marks are not kept: the present values are returned for them. */
API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, uint64_t *value) {
    TRY(capture_permits());
    TRY(driver_device(device));
    if (!value || attribute < USED_CURRENT || attribute > RESERVED_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    bool reserved = attribute >= RESERVED_CURRENT;
    *value = 0;
    pthread_mutex_lock(&memory_lock);
    for (struct allocation *each = memory_first(); each; each = each->next)
        if (each->kind == MEMORY_GRAPH && each->device == device && (reserved || !each->idle))
            *value += each->charged;
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int attribute, uint64_t *value) {
    TRY(driver_device(device));
    bool high = attribute == USED_HIGH || attribute == RESERVED_HIGH;
    return value && high && !*value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
