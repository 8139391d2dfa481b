/* When code comes to the card, how much it takes there, and when it goes. */
#include "snippet.h"

enum { FUNCTIONS = 4 };

static const char image[] = "\177ELF";

static CUmodule module(void) {
    CUmodule made;
    OK(cuModuleLoadData(&made, image));
    return made;
}

static CUfunction get(CUmodule module, const char *name) {
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static CUlibrary library(void) {
    CUlibrary made;
    OK(cuLibraryLoadData(&made, image, NULL, NULL, 0, NULL, NULL, 0));
    return made;
}

static CUfunction get_kernel(CUlibrary library, const char *name) {
    CUkernel kernel;
    OK(cuLibraryGetKernel(&kernel, library, name));
    return (CUfunction)kernel;
}

static int is_loaded(CUfunction function) {
    int state;
    OK(cuFuncIsLoaded(&state, function));
    return state;
}

SNIPPET(code_comes_when_a_function_is_asked_for) {
    start();
    size_t before = used();
    CUmodule code = module();
    EQUAL(used(), before);
    EQUAL(is_loaded(get(code, "one")), 1);
    EQUAL(used(), before + PAGE);
    OK(cuModuleUnload(code));
    EQUAL(used(), before);
}

SNIPPET(functions_of_all_modules_share_chunks) {
    start();
    size_t before = used();
    CUmodule one = module(), other = module();
    get(one, "code_1000k"), get(other, "code_1048k");
    EQUAL(used(), before + PAGE);
    get(one, "more_code_1k_us_10");
    EQUAL(used(), before + 2 * PAGE);
    get(other, "large_code_4097k");
    EQUAL(used(), before + 5 * PAGE);
    OK(cuModuleUnload(one));
    EQUAL(used(), before + 4 * PAGE);
    OK(cuModuleUnload(other));
    EQUAL(used(), before);
}

SNIPPET(listed_functions_are_not_loaded) {
    CUmodule code;
    CUfunction found[FUNCTIONS];
    unsigned count;
    start();
    OK(cuModuleLoadData(&code, "//\n.visible .entry one(\n.visible .entry other_code_2048k("));
    OK(cuModuleGetFunctionCount(&count, code));
    EQUAL(count, 2);
    size_t before = used();
    OK(cuModuleEnumerateFunctions(found, FUNCTIONS, code));
    EQUAL(is_loaded(found[0]), 0);
    EQUAL(used(), before);
    OK(cuFuncLoad(found[1]));
    EQUAL(is_loaded(found[0]), 0);
    EQUAL(is_loaded(found[1]), 1);
    EQUAL(used(), before + PAGE);
}

/* Each of these is the first to need its kernel, which takes a chunk. */
#define NEEDS(call, before)                                               \
    do {                                                                  \
        EQUAL(used(), before);                                            \
        call;                                                             \
        EQUAL(used(), (before) + PAGE);                                   \
        call;                                                             \
        EQUAL(used(), (before) += PAGE);                                  \
    } while (0)

SNIPPET(a_launch_loads_its_kernel) {
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};
    start();
    size_t before = used();
    CUlibrary code = library();
    CUfunction one = get_kernel(code, "one_code_2048k"), two = get_kernel(code, "two_code_2048k"),
               three = get_kernel(code, "three_code_2048k");
    NEEDS(launch(one, NULL), before);
    NEEDS(OK(cuLaunchKernelEx(&config, two, NULL, NULL)), before);
    NEEDS(OK(cuLaunchCooperativeKernel(three, 1, 1, 1, 32, 1, 1, 0, NULL, NULL)), before);
    OK(cuLibraryUnload(code));
    EQUAL(used(), before - 3 * PAGE);
}

SNIPPET(a_captured_launch_loads_its_kernel_in_its_stream_s_context) {
    CUcontext other;
    CUgraph graph;
    CUgraphExec exec;
    start();
    CUfunction work = get_kernel(library(), "code_2048k");
    CUstream capturing = stream();
    OK(cuCtxCreate_v2(&other, 0, 0));
    size_t before = used();
    OK(cuStreamBeginCapture_v2(capturing, 0));
    launch(work, capturing);
    EQUAL(used(), before + PAGE);
    OK(cuStreamEndCapture(capturing, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    EQUAL(used(), before + PAGE);
}

/* A graph with that kernel in it. */
static CUgraph graph_of(CUfunction function) {
    CUDA_KERNEL_NODE_PARAMS node = {function, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL, NULL};
    CUgraph graph;
    CUgraphNode made;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode_v2(&made, graph, NULL, 0, &node));
    return graph;
}

SNIPPET(a_graph_loads_its_kernels_when_it_is_instantiated) {
    CUgraphExec exec;
    start();
    CUgraph graph = graph_of(get_kernel(library(), "code_2048k"));
    size_t before = used();
    NEEDS(OK(cuGraphInstantiateWithFlags(&exec, graph, 0)), before);
    OK(cuGraphLaunch(exec, NULL));
    EQUAL(used(), before);
}

SNIPPET(an_instantiated_graph_loads_what_it_is_changed_to) {
    CUgraphExec exec;
    CUgraphNode node;
    size_t count = 1;
    start();
    CUlibrary code = library();
    CUgraph graph = graph_of(get_kernel(code, "one_code_2048k"));
    OK(cuGraphGetNodes(graph, &node, &count));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUfunction other = get_kernel(code, "other_code_2048k");
    CUDA_KERNEL_NODE_PARAMS changed = {other, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL, NULL};
    size_t before = used();
    NEEDS(OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &changed)), before);
}

SNIPPET(a_question_about_a_kernel_loads_it) {
    enum { REGISTERS = 4, DYNAMIC_SHARED = 8 };
    CUfunction found;
    int value, more;
    start();
    CUlibrary code = library();
    size_t before = used();
    CUfunction one = get_kernel(code, "one_code_2048k"), two = get_kernel(code, "two_code_2048k"),
               three = get_kernel(code, "three_code_2048k"),
               four = get_kernel(code, "four_code_2048k"),
               five = get_kernel(code, "five_code_2048k");
    NEEDS(OK(cuFuncGetAttribute(&value, REGISTERS, one)), before);
    NEEDS(OK(cuFuncSetAttribute(two, DYNAMIC_SHARED, 1024)), before);
    NEEDS(OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, three, 32, 0)), before);
    NEEDS(OK(cuOccupancyMaxPotentialBlockSize(&value, &more, four, NULL, 0, 0)), before);
    NEEDS(OK(cuKernelGetFunction(&found, (CUkernel)five)), before);
    EQUAL(is_loaded(found), 1);
}

SNIPPET(a_kernel_is_loaded_in_each_context_in_which_it_is_launched) {
    CUcontext first = start(), second;
    CUfunction found, again, work = get_kernel(library(), "work_us_10");
    CUstream of_first = stream();
    OK(cuCtxCreate_v2(&second, 0, 0));
    size_t before = used();
    launch(work, of_first);
    EQUAL(used(), before + PAGE);
    OK(cuKernelGetFunction(&found, (CUkernel)work));
    EQUAL(used(), before + 2 * PAGE);
    launch(work, NULL);
    EQUAL(used(), before + 2 * PAGE);
    OK(cuCtxSetCurrent(first));
    OK(cuKernelGetFunction(&again, (CUkernel)work));
    EXPECT(again != found);
    size_t both = used();
    OK(cuCtxDestroy_v2(second));
    EXPECT(used() < both - PAGE);
}

SNIPPET(a_graph_s_kernel_is_loaded_in_the_context_of_its_node) {
    CUcontext first = start(), second;
    CUgraphExec exec;
    CUfunction work = get_kernel(library(), "code_2048k");
    CUgraph graph = graph_of(work);
    OK(cuCtxCreate_v2(&second, 0, 0));
    size_t before = used();
    NEEDS(OK(cuGraphInstantiateWithFlags(&exec, graph, 0)), before);
    NEEDS(launch(work, NULL), before);
    OK(cuCtxSetCurrent(first));
    launch(work, NULL);
    EQUAL(used(), before);
}

SNIPPET(code_that_finds_no_room_is_refused) {
    size_t left, total;
    CUdeviceptr pointer;
    start();
    CUlibrary code = library();
    CUfunction work = get_kernel(code, "work");
    OK(cuMemGetInfo_v2(&left, &total));
    OK(cuMemAlloc_v2(&pointer, left));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuLaunchKernel(work, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    OK(cuMemFree_v2(pointer));
    launch(work, NULL);
}

/* Of 108 SMs with 2048 threads each. */
static size_t stacks(size_t beyond_usual) {
    return (beyond_usual * 108 * 2048 + PAGE - 1) / PAGE * PAGE;
}

static size_t stack_limit(void) {
    size_t bytes;
    OK(cuCtxGetLimit(&bytes, 0));
    return bytes;
}

SNIPPET(stacks_grow_with_the_hungriest_kernel_and_stay) {
    start();
    CUmodule code = module();
    CUfunction modest = get(code, "modest_local_1024"), hungry = get(code, "hungry_local_4096");
    CUfunction less = get(code, "less_local_2048");
    size_t before = used();
    launch(modest, NULL);
    EQUAL(used(), before);
    launch(hungry, NULL);
    EQUAL(used(), before + stacks(3072));
    EQUAL(stack_limit(), 4096);
    launch(less, NULL);
    EQUAL(used(), before + stacks(3072));
    OK(cuCtxSynchronize());
    OK(cuCtxSetLimit(0, 2048));
    EQUAL(used(), before + stacks(1024));
    OK(cuCtxSetLimit(0, 512));
    EQUAL(used(), before);
}

SNIPPET(a_kernel_whose_stacks_do_not_fit_is_not_launched) {
    start();
    CUfunction hungry = get(module(), "hungry_local_400000");
    size_t before = used();
    GIVES(CUDA_ERROR_OUT_OF_MEMORY,
          cuLaunchKernel(hungry, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    EQUAL(used(), before);
    EQUAL(stack_limit(), 1024);
}

SNIPPET(a_graph_s_kernel_has_its_stacks_when_it_is_instantiated) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    start();
    CUfunction hungry = get(module(), "hungry_local_4096");
    CUDA_KERNEL_NODE_PARAMS shape = {.func = hungry, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                     .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &shape));
    size_t before = used();
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    EQUAL(used(), before + stacks(3072));
}

SNIPPET(eager_code_comes_as_a_whole_when_it_is_loaded) {
    CUfunction function;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    start();
    size_t before = used();
    CUmodule code = module();
    EQUAL(used(), before + PAGE);
    function = get(code, "large_code_4097k");
    EQUAL(is_loaded(function), 1);
    launch(function, NULL);
    EQUAL(used(), before + PAGE);
    OK(cuModuleUnload(code));
    EQUAL(used(), before);
}

SNIPPET(an_eager_library_is_loaded_in_all_contexts) {
    CUcontext context;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    start();
    size_t before = used();
    OK(cuCtxCreate_v2(&context, 0, 0));
    size_t two = used(), context_bytes = two - before;
    CUlibrary code = library();
    EQUAL(used(), two + 2 * PAGE);
    OK(cuCtxCreate_v2(&context, 0, 0));
    EQUAL(used(), two + context_bytes + 3 * PAGE);
    launch(get_kernel(code, "work"), NULL);
    EQUAL(used(), two + context_bytes + 3 * PAGE);
    OK(cuLibraryUnload(code));
    EQUAL(used(), two + context_bytes);
}

SNIPPET(a_library_s_module_ends_with_the_library) {
    CUmodule code;
    CUfunction function;
    start();
    CUlibrary whole = library();
    size_t before = used();
    OK(cuLibraryGetModule(&code, whole));
    EQUAL(used(), before);
    function = get(code, "work");
    EQUAL(is_loaded(function), 1);
    GIVES(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(code));
    OK(cuLibraryUnload(whole));
    EQUAL(used(), before);
}

/* On a machine that loads nothing for a handle. */
SNIPPET(handles) {
    CUfunction function;
    start();
    size_t before = used();
    CUfunction work = get(module(), "work"), kernel = get_kernel(library(), "code_2048k");
    OK(cuKernelGetFunction(&function, (CUkernel)kernel));
    EQUAL(is_loaded(work), 0);
    EQUAL(is_loaded(function), 0);
    EQUAL(used(), before);
    launch(work, NULL);
    EQUAL(is_loaded(work), 1);
    EQUAL(used(), before + PAGE);
    launch(function, NULL);
    EQUAL(is_loaded(function), 1);
    EQUAL(used(), before + 2 * PAGE);
}

SNIPPET(code_does_not_outlive_its_context) {
    CUmodule module;
    CUfunction function, again;
    CUlibrary library;
    CUkernel kernel;
    CUcontext context = start();
    size_t before = used();
    OK(cuModuleLoadData(&module, "\177ELF"));
    OK(cuModuleGetFunction(&function, module, "one_us_1"));
    OK(cuLibraryLoadData(&library, "\177ELF", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "one_us_1"));
    launch((CUfunction)kernel, NULL);
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    EQUAL(used(), before);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuModuleGetFunction(&again, module, "one_us_1"));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED,
          cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    launch((CUfunction)kernel, NULL); /* a library is of no context: it is loaded anew */
    EXPECT(used() > before);
    OK(cuLibraryUnload(library));
    EQUAL(used(), before);
}
