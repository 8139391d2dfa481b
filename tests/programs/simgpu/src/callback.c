/* cuStreamAddCallback: a host function in a stream that gets the stream as an argument. */
#include <stdlib.h>

#include "stream.h"

typedef void (*callback)(CUstream stream, CUresult status, void *data);

struct told {
    callback function;
    CUstream stream;
    void *data;
};

static void tell(void *package) {
    struct told told = *(struct told *)package;
    free(package);
    told.function(told.stream, CUDA_SUCCESS, told.data);
}

TWINS(cuStreamAddCallback, _ptsz, (CUstream handle, callback function, void *data, unsigned flags),
      (handle, function, data, flags)) {
    CUstream stream;
    TRY(stream_get(handle, &stream));
    if (!function || flags) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct told *told = malloc(sizeof *told);
    if (!told) return CUDA_ERROR_OUT_OF_MEMORY;
    *told = (struct told){function, handle, data};
    return stream_add(stream, (struct work){.kind = WORK_CALL, .call = {tell, told}});
}
