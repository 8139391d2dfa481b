/*
 * All calls that start work on a card, and the end of streams. Nearly all launches are paid for by
 * the thread's credit; then the wrapper jumps to the driver's function, with the arguments in
 * place.
 */
#include "lookup/resolve.h"
#include "time/launch_metering.h"

#define LEGACY false
#define PER_THREAD true

/* Not inline, so that the fast path needs no stack frame. */
#define SLOWLY(symbol, parameters, work, shape, name, arguments)         \
    static __attribute__((noinline)) CUresult slow_##symbol parameters { \
        struct piece piece;                                              \
        CUresult result = metering_begin(&piece, work, shape, name);     \
        if (result != CUDA_SUCCESS) return result;                       \
        return metering_end(&piece, REAL(symbol) arguments);             \
    }

#define LAUNCH(symbol, parameters, work, shape, name, arguments)               \
    SLOWLY(symbol, parameters, work, shape, name, arguments)                   \
    EXPORT CUresult symbol parameters {                                        \
        __typeof__(&symbol) real = KNOWN(symbol);                              \
        if (__builtin_expect(real && stream_credit_pay(work, shape, name), 1)) \
            return real arguments;                                             \
        return slow_##symbol arguments;                                        \
    }

#define SHAPE costs_shape(grid_x, grid_y, grid_z, block_x, block_y, block_z)
#define NO_SHAPE 0

#define ALL (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)
#define ALL_EXTRA                                                                                   \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, \
     extra)

LAUNCH(cuLaunchKernel, (LAUNCH_SHAPE, void **extra), function, SHAPE, stream_credit_name(stream, LEGACY),
       ALL_EXTRA)
LAUNCH(cuLaunchKernel_ptsz, (LAUNCH_SHAPE, void **extra), function, SHAPE,
       stream_credit_name(stream, PER_THREAD), ALL_EXTRA)
LAUNCH(cuLaunchCooperativeKernel, (LAUNCH_SHAPE), function, SHAPE, stream_credit_name(stream, LEGACY),
       ALL)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (LAUNCH_SHAPE), function, SHAPE,
       stream_credit_name(stream, PER_THREAD), ALL)

/* A missing configuration is left to the driver to refuse. */
static uintptr_t stream_in(const CUlaunchConfig *config, bool twin) {
    return stream_credit_name(config ? config->stream : NULL, twin);
}

static inline uint64_t shape_in(const CUlaunchConfig *config) {
    return config ? costs_shape(config->grid_x, config->grid_y, config->grid_z, config->block_x,
                                config->block_y, config->block_z)
                  : NO_SHAPE;
}

#define EX_PARAMETERS \
    (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)

LAUNCH(cuLaunchKernelEx, EX_PARAMETERS, function, shape_in(config), stream_in(config, LEGACY),
       (config, function, parameters, extra))
LAUNCH(cuLaunchKernelEx_ptsz, EX_PARAMETERS, function, shape_in(config),
       stream_in(config, PER_THREAD), (config, function, parameters, extra))

/* These take the shape of blocks from the function. */
LAUNCH(cuLaunch, (CUfunction function), function, NO_SHAPE, stream_credit_name(NULL, LEGACY), (function))
LAUNCH(cuLaunchGrid, (CUfunction function, int width, int height), function,
       costs_shape((unsigned)width, (unsigned)height, 0, 0, 0, 0), stream_credit_name(NULL, LEGACY),
       (function, width, height))
LAUNCH(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream), function,
       costs_shape((unsigned)width, (unsigned)height, 0, 0, 0, 0), stream_credit_name(stream, LEGACY),
       (function, width, height, stream))

LAUNCH(cuGraphLaunch, (CUgraphExec exec, CUstream stream), exec, NO_SHAPE,
       stream_credit_name(stream, LEGACY), (exec, stream))
LAUNCH(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), exec, NO_SHAPE,
       stream_credit_name(stream, PER_THREAD), (exec, stream))

#define DEVICES_AT_ONCE 64

/* Begins a launch on each of several cards. All must have begun before any is launched. */
static CUresult begin_all(struct piece *pieces, const CUDA_LAUNCH_PARAMS *list, unsigned count,
                          unsigned *begun) {
    for (*begun = 0; *begun < count; ++*begun) {
        const CUDA_LAUNCH_PARAMS *each = &list[*begun];
        uint64_t shape = costs_shape(each->grid_x, each->grid_y, each->grid_z, each->block_x,
                                     each->block_y, each->block_z);
        CUresult result = metering_begin(&pieces[*begun], each->function, shape,
                                         stream_credit_name(each->stream, LEGACY));
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count,
                                                     unsigned flags) {
    struct piece pieces[DEVICES_AT_ONCE];
    unsigned begun = 0;
    if (!list || count > DEVICES_AT_ONCE)
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    CUresult result = begin_all(pieces, list, count, &begun);
    if (result == CUDA_SUCCESS)
        result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    while (begun) metering_end(&pieces[--begun], result);
    return result;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
    metering_before_end(stream);
    return REAL(cuStreamDestroy)(stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    metering_before_end(stream);
    return REAL(cuStreamDestroy_v2)(stream);
}
