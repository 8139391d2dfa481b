/* The entry points for streams. */
#include "capture.h"
#include "stream.h"

enum { NON_BLOCKING = 1, LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

static CUresult create(CUstream *made, unsigned flags, int priority) {
    CUcontext context;
    TRY(context_current(&context));
    if (!made || flags > NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    *made = stream_new(context, flags & NON_BLOCKING ? STREAM_FREE_RUNNING : STREAM_BLOCKING);
    pthread_mutex_unlock(&engine_lock);
    (*made)->flags = flags;
    (*made)->priority = priority;
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return create(stream, flags, LEAST_PRIORITY);
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    if (priority > LEAST_PRIORITY) priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY) priority = GREATEST_PRIORITY;
    return create(stream, flags, priority);
}

/* Only the handle ends at once; the stream's work is still done. */
API CUresult cuStreamDestroy_v2(CUstream handle) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if ((uintptr_t)handle <= 2) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&engine_lock);
    if (stream->capture) capture_spoil(stream, CUDA_SUCCESS);
    stream_retire(stream);
    pthread_mutex_unlock(&engine_lock);
    return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy(CUstream handle) {
    return cuStreamDestroy_v2(handle);
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    TRY(driver_ready());
    if (least) *least = LEAST_PRIORITY;
    if (greatest) *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}

TWINS(cuStreamSynchronize, _ptsz, (CUstream handle), (handle)) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (stream->capture) return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    TRY(engine_wait_stream(stream));
    pool_trim_all();
    return CUDA_SUCCESS;
}

TWINS(cuStreamQuery, _ptsz, (CUstream handle), (handle)) {
    TRY(capture_permits());
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (stream->capture) return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    pthread_mutex_lock(&engine_lock);
    engine_push(false);
    bool idle = stream_idle(stream);
    pthread_mutex_unlock(&engine_lock);
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuCtxSynchronize(void) {
    CUcontext context;
    TRY(context_current(&context));
    TRY(engine_wait_context(context));
    pool_trim_all();
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize_v2(CUcontext context) {
    if (!context) return cuCtxSynchronize();
    TRY(context_check(context));
    return engine_wait_context(context);
}

/* ---- what a stream is ----------------------------------------------------------------------- */

#define STREAM_FIGURE(name, type, worth)                                   \
    TWINS(name, _ptsz, (CUstream handle, type * value), (handle, value)) { \
        CUstream stream;                                                   \
        TRY(stream_get(handle, &stream));                                  \
        if (!value) return CUDA_ERROR_INVALID_VALUE;                       \
        *value = worth;                                                    \
        return CUDA_SUCCESS;                                               \
    }

STREAM_FIGURE(cuStreamGetPriority, int, stream->priority)
STREAM_FIGURE(cuStreamGetFlags, unsigned, stream->flags)
STREAM_FIGURE(cuStreamGetId, unsigned long long, stream->id)
STREAM_FIGURE(cuStreamGetCtx, CUcontext, stream->context)
STREAM_FIGURE(cuStreamGetDevice, CUdevice, stream->context->device)

/* Access policy windows and similar attributes have no effect on a simulated card. */
TWINS(cuStreamSetAttribute, _ptsz, (CUstream handle, int attribute, const void *value),
      (handle, attribute, value)) {
    CUstream stream;
    (void)attribute;
    TRY(stream_get(handle, &stream));
    return value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

TWINS(cuStreamCopyAttributes, _ptsz, (CUstream to, CUstream from), (to, from)) {
    CUstream stream;
    TRY(stream_get(to, &stream));
    return stream_get(from, &stream);
}

TWINS(cuStreamAttachMemAsync, _ptsz,
      (CUstream handle, CUdeviceptr pointer, size_t bytes, unsigned flags),
      (handle, pointer, bytes, flags)) {
    CUstream stream;
    (void)pointer, (void)bytes, (void)flags;
    return stream_get(handle, &stream);
}

/* ---- host functions ------------------------------------------------------------------------- */

TWINS(cuLaunchHostFunc, _ptsz, (CUstream handle, CUhostFn function, void *data),
      (handle, function, data)) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    return stream_add(stream, (struct work){.kind = WORK_CALL, .call = {function, data}});
}
