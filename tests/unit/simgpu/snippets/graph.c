#include "snippet.h"

static CUDA_KERNEL_NODE_PARAMS params(const char *name) {
    return (CUDA_KERNEL_NODE_PARAMS){kernel(name), 2, 1, 1, 1024, 1, 1, 0, NULL, NULL, NULL, NULL};
}

static CUgraphNode add(CUgraph graph, const char *name, const CUgraphNode *before, size_t count) {
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS kernel_params = params(name);
    OK(cuGraphAddKernelNode_v2(&node, graph, before, count, &kernel_params));
    return node;
}

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static long time_of(CUgraphExec exec, CUstream in) {
    CUevent from = event(), to = event();
    OK(cuEventRecord(from, in));
    OK(cuGraphLaunch(exec, in));
    OK(cuEventRecord(to, in));
    OK(cuStreamSynchronize(in));
    return elapsed_us(from, to);
}

/* a, then b and c beside each other, then d. */
SNIPPET(branches_of_a_graph_run_beside_each_other) {
    CUgraph graph;
    start();
    OK(cuGraphCreate(&graph, 0));
    CUgraphNode a = add(graph, "a_us_100", NULL, 0);
    CUgraphNode both[] = {add(graph, "b_us_300", &a, 1), add(graph, "c_us_200", &a, 1)};
    add(graph, "d_us_100", both, 2);
    CUgraphExec exec = instantiate(graph);
    OK(cuGraphDestroy(graph));
    EQUAL(time_of(exec, stream()), 500);
    EQUAL(time_of(exec, NULL), 500);
    OK(cuGraphExecDestroy(exec));
}

SNIPPET(a_child_graph_stands_for_all_its_nodes) {
    CUgraph graph, child;
    CUgraphNode inner;
    start();
    OK(cuGraphCreate(&child, 0));
    add(child, "x_us_50", NULL, 0);
    add(child, "y_us_150", NULL, 0);
    OK(cuGraphCreate(&graph, 0));
    CUgraphNode first = add(graph, "a_us_100", NULL, 0);
    OK(cuGraphAddChildGraphNode(&inner, graph, &first, 1, child));
    add(graph, "d_us_100", &inner, 1);
    EQUAL(time_of(instantiate(graph), stream()), 350);
}

SNIPPET(a_cycle_is_refused) {
    CUgraph graph;
    CUgraphExec exec;
    start();
    OK(cuGraphCreate(&graph, 0));
    CUgraphNode a = add(graph, "a_us_1", NULL, 0), b = add(graph, "b_us_1", &a, 1);
    OK(cuGraphAddDependencies(graph, &b, &a, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, graph, 0));
}

SNIPPET(kernels_of_an_instantiated_graph_can_be_changed) {
    CUgraph graph, other;
    CUgraphExecUpdateResultInfo info;
    start();
    OK(cuGraphCreate(&graph, 0));
    CUgraphNode a = add(graph, "a_us_100", NULL, 0);
    CUgraphExec exec = instantiate(graph);
    CUDA_KERNEL_NODE_PARAMS slower = params("a_us_700");
    OK(cuGraphExecKernelNodeSetParams_v2(exec, a, &slower));
    EQUAL(time_of(exec, stream()), 700);
    OK(cuGraphCreate(&other, 0));
    CUgraphNode first = add(other, "z_us_40", NULL, 0);
    OK(cuGraphExecUpdate_v2(exec, other, &info));
    EQUAL(time_of(exec, stream()), 40);
    add(other, "more_us_1", &first, 1);
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, other, &info));
}

SNIPPET(a_graph_takes_its_memory_when_it_is_launched) {
    CUgraph graph;
    CUgraphNode alloc, fill, end;
    CUDA_MEM_ALLOC_NODE_PARAMS wish = {.bytesize = GIB};
    wish.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wish.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0};
    start();
    CUfunction work = kernel("a_us_1");
    (void)work;
    size_t before = used();
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &wish));
    (void)fill;
    OK(cuGraphAddMemFreeNode(&end, graph, &alloc, 1, wish.dptr));
    CUgraphExec exec = instantiate(graph);
    EQUAL(used(), before);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuStreamSynchronize(NULL));
    EQUAL(used() - before, GIB);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQUAL(used() - before, GIB);
    OK(cuDeviceGraphMemTrim(0));
    EQUAL(used(), before);
}

SNIPPET(a_graph_that_finds_no_memory_is_not_launched) {
    CUgraph graph;
    CUgraphNode alloc;
    CUDA_MEM_ALLOC_NODE_PARAMS wish = {.bytesize = 16 * GIB};
    wish.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0};
    start();
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &wish));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(instantiate(graph), NULL));
}

SNIPPET(captured_streams_become_a_graph) {
    CUgraph graph;
    CUdeviceptr pointer;
    size_t count = 0;
    int status;
    start();
    CUfunction work = kernel("a_us_100");
    CUstream a = stream(), b = stream();
    CUevent fork = event(), join = event();
    OK(cuStreamBeginCapture_v2(a, 0));
    OK(cuStreamIsCapturing(a, &status));
    EQUAL(status, 1);
    OK(cuMemAllocAsync(&pointer, MIB, a));
    OK(cuEventRecord(fork, a));
    OK(cuStreamWaitEvent(b, fork, 0));
    launch_blocks(work, 2, a);
    launch_blocks(work, 2, b);
    OK(cuEventRecord(join, b));
    OK(cuStreamWaitEvent(a, join, 0));
    OK(cuMemsetD32Async(pointer, 0, 1, a));
    OK(cuMemFreeAsync(pointer, a));
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphGetNodes(graph, NULL, &count));
    EQUAL(count, 5);
    EQUAL(time_of(instantiate(graph), a), 101);
    OK(cuStreamQuery(b));
}

SNIPPET(a_copy_may_be_waited_for_beside_a_capture) {
    CUgraph graph;
    CUdeviceptr pointer;
    CUstream busy, captured;
    size_t count = 0;
    int value = 1;
    start();
    CUfunction work = kernel("a_us_100");
    OK(cuStreamCreate(&busy, 0));
    OK(cuStreamCreate(&captured, 1));
    OK(cuMemAlloc_v2(&pointer, 4));
    OK(cuMemsetD32Async(pointer, 7, 1, busy));
    for (int i = 0; i < 5; i++) launch(work, busy);
    OK(cuStreamBeginCapture_v2(captured, 2));
    launch(work, captured);
    OK(cuMemsetD32Async(pointer, 9, 1, captured));
    OK(cuMemcpyDtoH_v2(&value, pointer, 4)); /* waits for the busy stream */
    EQUAL(value, 7);
    OK(cuStreamQuery(busy));
    OK(cuStreamEndCapture(captured, &graph));
    OK(cuGraphGetNodes(graph, NULL, &count));
    EQUAL(count, 2);
}

SNIPPET(a_spoiled_capture_fails) {
    CUgraph graph;
    start();
    CUfunction work = kernel("a_us_100");
    CUstream a = stream(), b = stream();
    CUevent fork = event();
    OK(cuStreamBeginCapture_v2(a, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(a));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &graph));
    OK(cuStreamBeginCapture_v2(a, 0));
    launch(work, a);
    OK(cuEventRecord(fork, a));
    OK(cuStreamWaitEvent(b, fork, 0));
    launch(work, b);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(a, &graph));
    launch(work, b);
    OK(cuStreamSynchronize(b));
}
