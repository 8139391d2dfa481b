/* The entry points for copies. All of them call copy.c. */
#include "copy.h"

static CUDA_MEMCPY3D_SIDE host(const void *pointer) {
    return (CUDA_MEMCPY3D_SIDE){.memoryType = CU_MEMORYTYPE_HOST, .host = (void *)pointer};
}

static CUDA_MEMCPY3D_SIDE device(CUdeviceptr pointer) {
    return (CUDA_MEMCPY3D_SIDE){.memoryType = CU_MEMORYTYPE_DEVICE, .device = pointer};
}

static CUDA_MEMCPY3D_SIDE unified(CUdeviceptr pointer) {
    return (CUDA_MEMCPY3D_SIDE){.memoryType = CU_MEMORYTYPE_UNIFIED, .device = pointer};
}

static CUDA_MEMCPY3D_SIDE array(CUarray array, size_t offset) {
    return (CUDA_MEMCPY3D_SIDE){
        .memoryType = CU_MEMORYTYPE_ARRAY, .array = array, .xInBytes = offset};
}

static CUresult line(CUDA_MEMCPY3D_SIDE to, CUDA_MEMCPY3D_SIDE from, size_t bytes, CUstream stream,
                     bool wait) {
    CUDA_MEMCPY3D copy = {from, to, bytes, 1, 1};
    return copy_do(&copy, stream, wait);
}

/* Defines an entry point that waits (suffix _ptds) and the one that does not (suffix _ptsz). */
#define COPY_LINE(now, later, parameters, stream_parameters, arguments, stream_arguments, to, \
                  from)                                                                       \
    TWINS(now, _ptds, parameters, arguments) {                                                \
        return line(to, from, bytes, NULL, true);                                             \
    }                                                                                         \
    TWINS(later, _ptsz, stream_parameters, stream_arguments) {                                \
        return line(to, from, bytes, stream, false);                                          \
    }
#define WITH(...) (__VA_ARGS__)

COPY_LINE(cuMemcpy, cuMemcpyAsync, WITH(CUdeviceptr to, CUdeviceptr from, size_t bytes),
          WITH(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
          WITH(to, from, bytes), WITH(to, from, bytes, stream), unified(to), unified(from))
COPY_LINE(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2,
          WITH(CUdeviceptr to, const void *from, size_t bytes),
          WITH(CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
          WITH(to, from, bytes), WITH(to, from, bytes, stream), device(to), host(from))
COPY_LINE(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, WITH(void *to, CUdeviceptr from, size_t bytes),
          WITH(void *to, CUdeviceptr from, size_t bytes, CUstream stream), WITH(to, from, bytes),
          WITH(to, from, bytes, stream), host(to), device(from))
COPY_LINE(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2,
          WITH(CUdeviceptr to, CUdeviceptr from, size_t bytes),
          WITH(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
          WITH(to, from, bytes), WITH(to, from, bytes, stream), device(to), device(from))
COPY_LINE(cuMemcpyHtoA_v2, cuMemcpyHtoAAsync_v2,
          WITH(CUarray to, size_t at, const void *from, size_t bytes),
          WITH(CUarray to, size_t at, const void *from, size_t bytes, CUstream stream),
          WITH(to, at, from, bytes), WITH(to, at, from, bytes, stream), array(to, at), host(from))
COPY_LINE(cuMemcpyAtoH_v2, cuMemcpyAtoHAsync_v2,
          WITH(void *to, CUarray from, size_t at, size_t bytes),
          WITH(void *to, CUarray from, size_t at, size_t bytes, CUstream stream),
          WITH(to, from, at, bytes), WITH(to, from, at, bytes, stream), host(to), array(from, at))

TWINS(cuMemcpyDtoA_v2, _ptds, (CUarray to, size_t at, CUdeviceptr from, size_t bytes),
      (to, at, from, bytes)) {
    return line(array(to, at), device(from), bytes, NULL, true);
}

TWINS(cuMemcpyAtoD_v2, _ptds, (CUdeviceptr to, CUarray from, size_t at, size_t bytes),
      (to, from, at, bytes)) {
    return line(device(to), array(from, at), bytes, NULL, true);
}

TWINS(cuMemcpyAtoA_v2, _ptds,
      (CUarray to, size_t to_at, CUarray from, size_t from_at, size_t bytes),
      (to, to_at, from, from_at, bytes)) {
    return line(array(to, to_at), array(from, from_at), bytes, NULL, true);
}

TWINS(cuMemcpyPeer, _ptds,
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
       size_t bytes),
      (to, to_context, from, from_context, bytes)) {
    (void)to_context, (void)from_context;
    return line(device(to), device(from), bytes, NULL, true);
}

TWINS(cuMemcpyPeerAsync, _ptsz,
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
       CUstream stream),
      (to, to_context, from, from_context, bytes, stream)) {
    (void)to_context, (void)from_context;
    return line(device(to), device(from), bytes, stream, false);
}

/* ---- rectangles and boxes ------------------------------------------------------------------- */

static CUDA_MEMCPY3D from_2d(const CUDA_MEMCPY2D *copy) {
    return (CUDA_MEMCPY3D){
        {copy->srcXInBytes, copy->srcY, 0, 0, copy->srcMemoryType, (void *)copy->srcHost,
         copy->srcDevice, copy->srcArray, NULL, copy->srcPitch, 0},
        {copy->dstXInBytes, copy->dstY, 0, 0, copy->dstMemoryType, copy->dstHost, copy->dstDevice,
         copy->dstArray, NULL, copy->dstPitch, 0},
        copy->WidthInBytes,
        copy->Height,
        1};
}

static CUresult rectangle(const CUDA_MEMCPY2D *copy, CUstream stream, bool wait) {
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D whole = from_2d(copy);
    return copy_do(&whole, stream, wait);
}

TWINS(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *copy), (copy)) {
    return rectangle(copy, NULL, true);
}

TWINS(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *copy), (copy)) {
    return rectangle(copy, NULL, true);
}

TWINS(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream)) {
    return rectangle(copy, stream, false);
}

static CUresult box(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait) {
    return copy ? copy_do(copy, stream, wait) : CUDA_ERROR_INVALID_VALUE;
}

TWINS(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D *copy), (copy)) {
    return box(copy, NULL, true);
}

TWINS(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream)) {
    return box(copy, stream, false);
}

TWINS(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D *copy), (copy)) {
    return box(copy, NULL, true);
}

TWINS(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream)) {
    return box(copy, stream, false);
}

/* ---- batches of copies, whose attributes are ignored as hints ---------------------------------- */

/* Like the real driver, refuses a batch in the legacy stream. */
static CUresult may_batch(size_t count, CUstream handle) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    return count && stream->kind != STREAM_LEGACY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult lines(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes,
                      size_t count, CUstream stream) {
    TRY(may_batch(count, stream));
    if (!to || !from || !sizes) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        TRY(line(unified(to[i]), unified(from[i]), sizes[i], stream, false));
    return CUDA_SUCCESS;
}

TWINS(cuMemcpyBatchAsync, _ptsz,
      (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
       size_t *each, size_t attribute_count, size_t *failed, CUstream stream),
      (to, from, sizes, count, attributes, each, attribute_count, failed, stream)) {
    (void)attributes, (void)each, (void)attribute_count;
    if (failed) *failed = SIZE_MAX;
    return lines(to, from, sizes, count, stream);
}

TWINS(cuMemcpyBatchAsync_v2, _ptsz,
      (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
       size_t *each, size_t attribute_count, CUstream stream),
      (to, from, sizes, count, attributes, each, attribute_count, stream)) {
    (void)attributes, (void)each, (void)attribute_count;
    return lines(to, from, sizes, count, stream);
}

TWINS(cuMemcpyWithAttributesAsync, _ptsz,
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream),
      (to, from, bytes, attributes, stream)) {
    (void)attributes;
    return lines(&to, &from, &bytes, 1, stream);
}
