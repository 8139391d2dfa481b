/* Green contexts: views of a primary context. Each has all SMs, whatever number was requested. */
#include <stdlib.h>

#include "stream.h"

enum { MAGIC = 0x47524e21, DEFAULT_STREAM = 1, NON_BLOCKING = 1 };

struct CUgreenCtx_st {
    uint32_t magic;
    struct CUctx_st view;
};

static CUresult check(CUgreenCtx green) {
    TRY(driver_ready());
    return green && green->magic == MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUgreenCtx green_of(CUcontext context) {
    char *view = (char *)context;
    return context->whole ? (CUgreenCtx)(void *)(view - offsetof(struct CUgreenCtx_st, view)) : NULL;
}

API CUresult cuGreenCtxCreate(CUgreenCtx *made, void *resources, CUdevice device, unsigned flags) {
    CUcontext whole;
    (void)resources;
    TRY(driver_device(device));
    if (!made || flags != DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    CUgreenCtx green = calloc(1, sizeof *green);
    if (!green) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuDevicePrimaryCtxRetain(&whole, device);
    if (result) {
        free(green);
        return result;
    }
    green->magic = MAGIC;
    context_view(&green->view, whole);
    *made = green;
    return CUDA_SUCCESS;
}

/* The handle stays valid, like those of contexts. */
API CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    TRY(check(green));
    stream_end_context(&green->view);
    green->view.alive = false;
    green->magic = 0;
    return cuDevicePrimaryCtxRelease_v2(green->view.device);
}

API CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    TRY(check(green));
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = &green->view;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxStreamCreate(CUstream *made, CUgreenCtx green, unsigned flags, int priority) {
    TRY(check(green));
    if (!made || flags != NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    *made = stream_new(&green->view, STREAM_FREE_RUNNING);
    pthread_mutex_unlock(&engine_lock);
    (*made)->flags = flags;
    (*made)->priority = priority;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!green) return CUDA_ERROR_INVALID_VALUE;
    *green = green_of(stream->context);
    return CUDA_SUCCESS;
}

/* The first version returns only the view. */
TWINS(cuStreamGetCtx_v2, _ptsz, (CUstream handle, CUcontext *context, CUgreenCtx *green),
      (handle, context, green)) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (green) *green = green_of(stream->context);
    if (context) *context = context_whole(stream->context);
    return CUDA_SUCCESS;
}
