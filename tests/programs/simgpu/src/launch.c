/* Launches: computes the time and the SMs of a kernel from its shape. */
#include "launch.h"

#include <string.h>

#include "capture.h"
#include "engine.h"
#include "stream.h"
#include "harsh.h"

enum { BLOCKS_OF_SM = 32, THREADS_OF_BLOCK = 1024, WARP = 32 };

unsigned launch_resident(unsigned threads) {
    unsigned rounded = (unsigned)round_up(threads ? threads : 1, WARP);
    unsigned blocks = LAUNCH_THREADS_OF_SM / rounded;
    return blocks < BLOCKS_OF_SM ? blocks : BLOCKS_OF_SM;
}

/* Returns the first parameter as a 64-bit number, from either way of passing parameters. */
static uint64_t first_parameter(const CUDA_KERNEL_NODE_PARAMS *launch) {
    static const uintptr_t buffer = 1; /* CU_LAUNCH_PARAM_BUFFER_POINTER */
    uint64_t value = 0;
    const void *at = NULL;
    if (launch->kernelParams) at = launch->kernelParams[0];
    for (void **extra = launch->extra; !at && extra && *extra; extra += 2)
        if ((uintptr_t)extra[0] == buffer) at = extra[1];
    if (at) memcpy(&value, at, sizeof value);
    return value;
}

CUfunction launch_kernel(const CUDA_KERNEL_NODE_PARAMS *launch) {
    return launch->func ? launch->func : launch->kern;
}

static uint64_t wave_ns(const CUDA_KERNEL_NODE_PARAMS *launch, const struct sim_card *card) {
    const struct CUfunc_st *function = launch_kernel(launch);
    if (function->unit_ns) return first_parameter(launch) * function->unit_ns;
    return function->fixed_ns ? function->fixed_ns : card->kernel_ns;
}

static bool wrong_shape(const CUDA_KERNEL_NODE_PARAMS *launch, uint64_t threads) {
    return !launch->gridDimX || !launch->gridDimY || !launch->gridDimZ || !threads ||
           threads > THREADS_OF_BLOCK || launch->gridDimY > 65535 || launch->gridDimZ > 65535 ||
           launch->gridDimX > INT32_MAX;
}

static uint64_t blocks_of(const CUDA_KERNEL_NODE_PARAMS *launch) {
    return (uint64_t)launch->gridDimX * launch->gridDimY * launch->gridDimZ;
}

static uint64_t threads_of(const CUDA_KERNEL_NODE_PARAMS *launch) {
    return (uint64_t)launch->blockDimX * launch->blockDimY * launch->blockDimZ;
}

CUresult launch_work(const CUDA_KERNEL_NODE_PARAMS *launch, unsigned number, struct work *work) {
    const struct sim_card *card = &driver.sim.state->cards[number];
    TRY(function_check(launch_kernel(launch)));
    uint64_t threads = threads_of(launch), blocks = blocks_of(launch);
    if (wrong_shape(launch, threads)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t resident = launch_resident((unsigned)threads);
    uint64_t waves = (blocks + resident * card->sm_count - 1) / (resident * card->sm_count);
    uint64_t sms = (blocks + resident - 1) / resident;
    if (sms > card->sm_count) sms = card->sm_count;
    *work = (struct work){.kind = WORK_KERNEL,
                          .kernel = {waves * wave_ns(launch, card), (unsigned)sms}};
    return CUDA_SUCCESS;
}

static bool fits_at_once(const CUDA_KERNEL_NODE_PARAMS *launch, unsigned card) {
    uint64_t sms = driver.sim.state->cards[card].sm_count;
    return blocks_of(launch) <= sms * launch_resident((unsigned)threads_of(launch));
}

CUresult launch_prepare(const CUDA_KERNEL_NODE_PARAMS *launch, CUcontext context) {
    CUfunction function = launch_kernel(launch);
    TRY(function_load(function, context));
    if (!context) TRY(context_current(&context));
    return context_need_stack(context, (uint64_t)function->attributes[FUNCTION_LOCAL_BYTES]);
}

/* Delays the calling thread by the cost of the launch call itself, which is 0 on an ideal card. */
static void spend_launch(CUfunction function, unsigned number) {
    const struct sim_card *card = &driver.sim.state->cards[number];
    bool first = !atomic_exchange(&function->launched, true);
    harsh_spend(&driver.sim, card->launch_ns, card->launch_spread_ns);
    if (first) harsh_spend(&driver.sim, card->first_launch_ns, 0);
}

static bool queue_is_full(CUstream stream, struct mark **mark) {
    pthread_mutex_lock(&engine_lock);
    uint64_t room = driver.sim.state->cards[stream->context->card].queue_kernels;
    bool full = room && stream->length >= room;
    *mark = lane_full(stream->lane);
    pthread_mutex_unlock(&engine_lock);
    return full || *mark;
}

/* As with real drivers, a launch waits while the queue to the card is full. */
static CUresult wait_for_room(CUstream stream) {
    for (struct mark *mark; queue_is_full(stream, &mark);) {
        if (!mark) sim_wait_until(&driver.sim, SIM_NEVER);
        else TRY(engine_wait_and_drop(stream->context, mark));
    }
    return CUDA_SUCCESS;
}

static CUresult do_launch(const CUDA_KERNEL_NODE_PARAMS *launch, CUstream handle, bool together) {
    CUstream stream;
    struct work work;
    TRY(stream_get(handle, &stream));
    TRY(launch_prepare(launch, stream->context));
    TRY(launch_work(launch, stream->context->card, &work));
    if (together && !fits_at_once(launch, stream->context->card))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    spend_launch(launch_kernel(launch), stream->context->card);
    if (!stream->capture) {
        TRY(wait_for_room(stream));
        TRY(stream_add(stream, work));
        if (launch_kernel(launch)->faults)
            context_whole(stream->context)->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
        return CUDA_SUCCESS;
    }
    CUDA_KERNEL_NODE_PARAMS captured = *launch;
    captured.ctx = stream->context;
    return capture_kernel(stream, &captured);
}

TWINS(cuLaunchKernel, _ptsz,
      (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
       unsigned shared, CUstream stream, void **parameters, void **extra),
      (f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)) {
    CUDA_KERNEL_NODE_PARAMS launch = {f, gx, gy, gz, bx, by, bz, shared, parameters, extra, 0, 0};
    return do_launch(&launch, stream, false);
}

static bool is_cooperative(const CUlaunchConfig *config) {
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE &&
            config->attrs[i].value.cooperative)
            return true;
    return false;
}

TWINS(cuLaunchKernelEx, _ptsz,
      (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra),
      (config, f, parameters, extra)) {
    TRY(driver_ready());
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS launch = {f,
                                      config->gridDimX,
                                      config->gridDimY,
                                      config->gridDimZ,
                                      config->blockDimX,
                                      config->blockDimY,
                                      config->blockDimZ,
                                      config->sharedMemBytes,
                                      parameters,
                                      extra,
                                      0,
                                      0};
    return do_launch(&launch, config->hStream, is_cooperative(config));
}

TWINS(cuLaunchCooperativeKernel, _ptsz,
      (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
       unsigned shared, CUstream stream, void **parameters),
      (f, gx, gy, gz, bx, by, bz, shared, stream, parameters)) {
    CUDA_KERNEL_NODE_PARAMS launch = {f, gx, gy, gz, bx, by, bz, shared, parameters, 0, 0, 0};
    return do_launch(&launch, stream, true);
}

/* Each card starts when its own stream is ready; a common start of all cards is not simulated. */
API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count,
                                                  unsigned flags) {
    TRY(driver_ready());
    if (!list || !count || flags > 3) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *each = &list[i];
        CUDA_KERNEL_NODE_PARAMS launch = {each->function,
                                          each->gridDimX,
                                          each->gridDimY,
                                          each->gridDimZ,
                                          each->blockDimX,
                                          each->blockDimY,
                                          each->blockDimZ,
                                          each->sharedMemBytes,
                                          each->kernelParams,
                                          0,
                                          0,
                                          0};
        TRY(do_launch(&launch, each->hStream, true));
    }
    return CUDA_SUCCESS;
}

/* ---- old launch functions: shape and parameters are set on the function first ------------------ */

API CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z) {
    TRY(function_check(f));
    f->block[0] = x, f->block[1] = y, f->block[2] = z;
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetSharedSize(CUfunction f, unsigned bytes) {
    (void)bytes;
    return function_check(f);
}

API CUresult cuParamSetSize(CUfunction f, unsigned bytes) {
    (void)bytes;
    return function_check(f);
}

API CUresult cuParamSetv(CUfunction f, int offset, void *data, unsigned bytes) {
    TRY(function_check(f));
    if (offset < 0 || !data) return CUDA_ERROR_INVALID_VALUE;
    if ((size_t)offset + bytes <= sizeof f->old_parameter)
        memcpy(f->old_parameter + offset, data, bytes);
    return CUDA_SUCCESS;
}

API CUresult cuParamSeti(CUfunction f, int offset, unsigned value) {
    return cuParamSetv(f, offset, &value, sizeof value);
}

API CUresult cuParamSetf(CUfunction f, int offset, float value) {
    return cuParamSetv(f, offset, &value, sizeof value);
}

static CUresult launch_of_old(CUfunction f, int width, int height, CUstream stream) {
    TRY(function_check(f));
    void *parameters[] = {f->old_parameter};
    CUDA_KERNEL_NODE_PARAMS launch = {f,
                                      (unsigned)width,
                                      (unsigned)height,
                                      1,
                                      (unsigned)f->block[0],
                                      (unsigned)f->block[1],
                                      (unsigned)f->block[2],
                                      0,
                                      parameters,
                                      0,
                                      0,
                                      0};
    return do_launch(&launch, stream, false);
}

API CUresult cuLaunch(CUfunction f) {
    return launch_of_old(f, 1, 1, NULL);
}

API CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    return launch_of_old(f, width, height, NULL);
}

API CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    return launch_of_old(f, width, height, stream);
}
