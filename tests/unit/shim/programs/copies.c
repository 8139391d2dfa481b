/*
 * Copies and memsets: `copies all WAY` calls every one of them, with functions looked up that way,
 * and looks at what is counted; `copies NAME WAY` is one of the cases at the end.
 */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "api.h"
#include "cases.h"
#include "check.h"
#include "granted.h"

enum { TO_DEVICE, TO_HOST, DEVICES, OTHER, SET, KINDS };
enum { GOES_ON, WAITS };
enum { HOST = 1, DEVICE, ARRAY, UNIFIED }; /* types of memory */

#define THERE 0x1000
#define HERE 0x2000

static CUstream stream;
static CUarray array = (CUarray)0x3000;
static char host[1000];
static size_t sizes[] = {10, 20, 30};

static CUDA_MEMCPY2D_v1 area_v1 = {
    .from_type = ARRAY, .to_type = HOST, .width = 100, .height = 7};
static CUDA_MEMCPY2D area = {.from_type = DEVICE, .to_type = HOST, .width = 100, .height = 7};
static CUDA_MEMCPY3D_v1 box_v1 = {
    .from_type = HOST, .to_type = ARRAY, .width = 100, .height = 7, .depth = 3};
static CUDA_MEMCPY3D box = {
    .from_type = HOST, .to_type = DEVICE, .width = 100, .height = 7, .depth = 3};
/* The array's elements are of eight bytes. */
static CUDA_MEMCPY3D_BATCH_OP boxes[] = {
    {.from.type = 1, .to.type = 1, .width = 4, .height = 5, .depth = 6},
    {.from.type = 1, .to.type = 2, .width = 4, .height = 5, .depth = 6}};

/* CALL(symbol, whether the thread waits, kind, how many, bytes, arguments) */
#define CALLS(CALL) \
    CALL(cuMemcpy, WAITS, OTHER, 1, 1000, (THERE, HERE, 1000)) \
    CALL(cuMemcpy_ptds, WAITS, OTHER, 1, 1000, (THERE, HERE, 1000)) \
    CALL(cuMemcpyAsync, GOES_ON, OTHER, 1, 1000, (THERE, HERE, 1000, stream)) \
    CALL(cuMemcpyAsync_ptsz, GOES_ON, OTHER, 1, 1000, (THERE, HERE, 1000, stream)) \
    CALL(cuMemcpyHtoD, WAITS, TO_DEVICE, 1, 1000, (THERE, host, 1000)) \
    CALL(cuMemcpyHtoD_v2, WAITS, TO_DEVICE, 1, 1000, (THERE, host, 1000)) \
    CALL(cuMemcpyHtoD_v2_ptds, WAITS, TO_DEVICE, 1, 1000, (THERE, host, 1000)) \
    CALL(cuMemcpyHtoDAsync, GOES_ON, TO_DEVICE, 1, 1000, (THERE, host, 1000, stream)) \
    CALL(cuMemcpyHtoDAsync_v2, GOES_ON, TO_DEVICE, 1, 1000, (THERE, host, 1000, stream)) \
    CALL(cuMemcpyHtoDAsync_v2_ptsz, GOES_ON, TO_DEVICE, 1, 1000, (THERE, host, 1000, stream)) \
    CALL(cuMemcpyDtoH, WAITS, TO_HOST, 1, 1000, (host, HERE, 1000)) \
    CALL(cuMemcpyDtoH_v2, WAITS, TO_HOST, 1, 1000, (host, HERE, 1000)) \
    CALL(cuMemcpyDtoH_v2_ptds, WAITS, TO_HOST, 1, 1000, (host, HERE, 1000)) \
    CALL(cuMemcpyDtoHAsync, GOES_ON, TO_HOST, 1, 1000, (host, HERE, 1000, stream)) \
    CALL(cuMemcpyDtoHAsync_v2, GOES_ON, TO_HOST, 1, 1000, (host, HERE, 1000, stream)) \
    CALL(cuMemcpyDtoHAsync_v2_ptsz, GOES_ON, TO_HOST, 1, 1000, (host, HERE, 1000, stream)) \
    CALL(cuMemcpyDtoD, GOES_ON, DEVICES, 1, 1000, (THERE, HERE, 1000)) \
    CALL(cuMemcpyDtoD_v2, GOES_ON, DEVICES, 1, 1000, (THERE, HERE, 1000)) \
    CALL(cuMemcpyDtoD_v2_ptds, GOES_ON, DEVICES, 1, 1000, (THERE, HERE, 1000)) \
    CALL(cuMemcpyDtoDAsync, GOES_ON, DEVICES, 1, 1000, (THERE, HERE, 1000, stream)) \
    CALL(cuMemcpyDtoDAsync_v2, GOES_ON, DEVICES, 1, 1000, (THERE, HERE, 1000, stream)) \
    CALL(cuMemcpyDtoDAsync_v2_ptsz, GOES_ON, DEVICES, 1, 1000, (THERE, HERE, 1000, stream)) \
    CALL(cuMemcpyHtoA, WAITS, TO_DEVICE, 1, 1000, (array, 8, host, 1000)) \
    CALL(cuMemcpyHtoA_v2, WAITS, TO_DEVICE, 1, 1000, (array, 8, host, 1000)) \
    CALL(cuMemcpyHtoA_v2_ptds, WAITS, TO_DEVICE, 1, 1000, (array, 8, host, 1000)) \
    CALL(cuMemcpyHtoAAsync, GOES_ON, TO_DEVICE, 1, 1000, (array, 8, host, 1000, stream)) \
    CALL(cuMemcpyHtoAAsync_v2, GOES_ON, TO_DEVICE, 1, 1000, (array, 8, host, 1000, stream)) \
    CALL(cuMemcpyHtoAAsync_v2_ptsz, GOES_ON, TO_DEVICE, 1, 1000, (array, 8, host, 1000, stream)) \
    CALL(cuMemcpyAtoH, WAITS, TO_HOST, 1, 1000, (host, array, 8, 1000)) \
    CALL(cuMemcpyAtoH_v2, WAITS, TO_HOST, 1, 1000, (host, array, 8, 1000)) \
    CALL(cuMemcpyAtoH_v2_ptds, WAITS, TO_HOST, 1, 1000, (host, array, 8, 1000)) \
    CALL(cuMemcpyAtoHAsync, GOES_ON, TO_HOST, 1, 1000, (host, array, 8, 1000, stream)) \
    CALL(cuMemcpyAtoHAsync_v2, GOES_ON, TO_HOST, 1, 1000, (host, array, 8, 1000, stream)) \
    CALL(cuMemcpyAtoHAsync_v2_ptsz, GOES_ON, TO_HOST, 1, 1000, (host, array, 8, 1000, stream)) \
    CALL(cuMemcpyDtoA, GOES_ON, DEVICES, 1, 1000, (array, 8, HERE, 1000)) \
    CALL(cuMemcpyDtoA_v2, GOES_ON, DEVICES, 1, 1000, (array, 8, HERE, 1000)) \
    CALL(cuMemcpyDtoA_v2_ptds, GOES_ON, DEVICES, 1, 1000, (array, 8, HERE, 1000)) \
    CALL(cuMemcpyAtoD, GOES_ON, DEVICES, 1, 1000, (THERE, array, 8, 1000)) \
    CALL(cuMemcpyAtoD_v2, GOES_ON, DEVICES, 1, 1000, (THERE, array, 8, 1000)) \
    CALL(cuMemcpyAtoD_v2_ptds, GOES_ON, DEVICES, 1, 1000, (THERE, array, 8, 1000)) \
    CALL(cuMemcpyAtoA, GOES_ON, DEVICES, 1, 1000, (array, 8, array, 8, 1000)) \
    CALL(cuMemcpyAtoA_v2, GOES_ON, DEVICES, 1, 1000, (array, 8, array, 8, 1000)) \
    CALL(cuMemcpyAtoA_v2_ptds, GOES_ON, DEVICES, 1, 1000, (array, 8, array, 8, 1000)) \
    CALL(cuMemcpyPeer, GOES_ON, DEVICES, 1, 1000, (THERE, NULL, HERE, NULL, 1000)) \
    CALL(cuMemcpyPeer_ptds, GOES_ON, DEVICES, 1, 1000, (THERE, NULL, HERE, NULL, 1000)) \
    CALL(cuMemcpyPeerAsync, GOES_ON, DEVICES, 1, 1000, (THERE, NULL, HERE, NULL, 1000, stream)) \
    CALL(cuMemcpyPeerAsync_ptsz, GOES_ON, DEVICES, 1, 1000, (THERE, NULL, HERE, NULL, 1000, stream)) \
    CALL(cuMemcpy2D, WAITS, TO_HOST, 1, 700, (&area_v1)) \
    CALL(cuMemcpy2D_v2, WAITS, TO_HOST, 1, 700, (&area)) \
    CALL(cuMemcpy2D_v2_ptds, WAITS, TO_HOST, 1, 700, (&area)) \
    CALL(cuMemcpy2DUnaligned, WAITS, TO_HOST, 1, 700, (&area_v1)) \
    CALL(cuMemcpy2DUnaligned_v2, WAITS, TO_HOST, 1, 700, (&area)) \
    CALL(cuMemcpy2DUnaligned_v2_ptds, WAITS, TO_HOST, 1, 700, (&area)) \
    CALL(cuMemcpy2DAsync, GOES_ON, TO_HOST, 1, 700, (&area_v1, stream)) \
    CALL(cuMemcpy2DAsync_v2, GOES_ON, TO_HOST, 1, 700, (&area, stream)) \
    CALL(cuMemcpy2DAsync_v2_ptsz, GOES_ON, TO_HOST, 1, 700, (&area, stream)) \
    CALL(cuMemcpy3D, WAITS, TO_DEVICE, 1, 2100, (&box_v1)) \
    CALL(cuMemcpy3D_v2, WAITS, TO_DEVICE, 1, 2100, (&box)) \
    CALL(cuMemcpy3D_v2_ptds, WAITS, TO_DEVICE, 1, 2100, (&box)) \
    CALL(cuMemcpy3DAsync, GOES_ON, TO_DEVICE, 1, 2100, (&box_v1, stream)) \
    CALL(cuMemcpy3DAsync_v2, GOES_ON, TO_DEVICE, 1, 2100, (&box, stream)) \
    CALL(cuMemcpy3DAsync_v2_ptsz, GOES_ON, TO_DEVICE, 1, 2100, (&box, stream)) \
    CALL(cuMemcpy3DPeer, WAITS, TO_DEVICE, 1, 2100, (&box)) \
    CALL(cuMemcpy3DPeer_ptds, WAITS, TO_DEVICE, 1, 2100, (&box)) \
    CALL(cuMemcpy3DPeerAsync, GOES_ON, TO_DEVICE, 1, 2100, (&box, stream)) \
    CALL(cuMemcpy3DPeerAsync_ptsz, GOES_ON, TO_DEVICE, 1, 2100, (&box, stream)) \
    CALL(cuMemcpyBatchAsync, GOES_ON, OTHER, 3, 60, (NULL, NULL, sizes, 3, NULL, NULL, 0, NULL, stream)) \
    CALL(cuMemcpyBatchAsync_ptsz, GOES_ON, OTHER, 3, 60, (NULL, NULL, sizes, 3, NULL, NULL, 0, NULL, stream)) \
    CALL(cuMemcpyBatchAsync_v2, GOES_ON, OTHER, 3, 60, (NULL, NULL, sizes, 3, NULL, NULL, 0, stream)) \
    CALL(cuMemcpyBatchAsync_v2_ptsz, GOES_ON, OTHER, 3, 60, (NULL, NULL, sizes, 3, NULL, NULL, 0, stream)) \
    CALL(cuMemcpy3DBatchAsync, GOES_ON, OTHER, 2, 1080, (2, boxes, NULL, 0, stream)) \
    CALL(cuMemcpy3DBatchAsync_ptsz, GOES_ON, OTHER, 2, 1080, (2, boxes, NULL, 0, stream)) \
    CALL(cuMemcpy3DBatchAsync_v2, GOES_ON, OTHER, 2, 1080, (2, boxes, 0, stream)) \
    CALL(cuMemcpy3DBatchAsync_v2_ptsz, GOES_ON, OTHER, 2, 1080, (2, boxes, 0, stream)) \
    CALL(cuMemcpyWithAttributesAsync, GOES_ON, OTHER, 1, 1000, (THERE, HERE, 1000, NULL, stream)) \
    CALL(cuMemcpyWithAttributesAsync_ptsz, GOES_ON, OTHER, 1, 1000, (THERE, HERE, 1000, NULL, stream)) \
    CALL(cuMemcpy3DWithAttributesAsync, GOES_ON, OTHER, 1, 120, (boxes, 0, stream)) \
    CALL(cuMemcpy3DWithAttributesAsync_ptsz, GOES_ON, OTHER, 1, 120, (boxes, 0, stream)) \
    CALL(cuMemsetD8, GOES_ON, SET, 1, 50, (THERE, 7, 50)) \
    CALL(cuMemsetD8_v2, GOES_ON, SET, 1, 50, (THERE, 7, 50)) \
    CALL(cuMemsetD8_v2_ptds, GOES_ON, SET, 1, 50, (THERE, 7, 50)) \
    CALL(cuMemsetD8Async, GOES_ON, SET, 1, 50, (THERE, 7, 50, stream)) \
    CALL(cuMemsetD8Async_ptsz, GOES_ON, SET, 1, 50, (THERE, 7, 50, stream)) \
    CALL(cuMemsetD16, GOES_ON, SET, 1, 100, (THERE, 7, 50)) \
    CALL(cuMemsetD16_v2, GOES_ON, SET, 1, 100, (THERE, 7, 50)) \
    CALL(cuMemsetD16_v2_ptds, GOES_ON, SET, 1, 100, (THERE, 7, 50)) \
    CALL(cuMemsetD16Async, GOES_ON, SET, 1, 100, (THERE, 7, 50, stream)) \
    CALL(cuMemsetD16Async_ptsz, GOES_ON, SET, 1, 100, (THERE, 7, 50, stream)) \
    CALL(cuMemsetD32, GOES_ON, SET, 1, 200, (THERE, 7, 50)) \
    CALL(cuMemsetD32_v2, GOES_ON, SET, 1, 200, (THERE, 7, 50)) \
    CALL(cuMemsetD32_v2_ptds, GOES_ON, SET, 1, 200, (THERE, 7, 50)) \
    CALL(cuMemsetD32Async, GOES_ON, SET, 1, 200, (THERE, 7, 50, stream)) \
    CALL(cuMemsetD32Async_ptsz, GOES_ON, SET, 1, 200, (THERE, 7, 50, stream)) \
    CALL(cuMemsetD2D8, GOES_ON, SET, 1, 50, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D8_v2, GOES_ON, SET, 1, 50, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D8_v2_ptds, GOES_ON, SET, 1, 50, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D8Async, GOES_ON, SET, 1, 50, (THERE, 512, 7, 10, 5, stream)) \
    CALL(cuMemsetD2D8Async_ptsz, GOES_ON, SET, 1, 50, (THERE, 512, 7, 10, 5, stream)) \
    CALL(cuMemsetD2D16, GOES_ON, SET, 1, 100, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D16_v2, GOES_ON, SET, 1, 100, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D16_v2_ptds, GOES_ON, SET, 1, 100, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D16Async, GOES_ON, SET, 1, 100, (THERE, 512, 7, 10, 5, stream)) \
    CALL(cuMemsetD2D16Async_ptsz, GOES_ON, SET, 1, 100, (THERE, 512, 7, 10, 5, stream)) \
    CALL(cuMemsetD2D32, GOES_ON, SET, 1, 200, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D32_v2, GOES_ON, SET, 1, 200, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D32_v2_ptds, GOES_ON, SET, 1, 200, (THERE, 512, 7, 10, 5)) \
    CALL(cuMemsetD2D32Async, GOES_ON, SET, 1, 200, (THERE, 512, 7, 10, 5, stream)) \
    CALL(cuMemsetD2D32Async_ptsz, GOES_ON, SET, 1, 200, (THERE, 512, 7, 10, 5, stream))

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- what is counted ---- */

struct counted {
    uint64_t count[KINDS], bytes[KINDS];
};

static void add(struct counted *sum, const struct mizar_copies *copies) {
    for (int kind = 0; kind < KINDS; kind++) {
        sum->count[kind] += __atomic_load_n(&copies->kinds[kind].count, __ATOMIC_RELAXED);
        sum->bytes[kind] += __atomic_load_n(&copies->kinds[kind].bytes, __ATOMIC_RELAXED);
    }
}

static struct counted counted_on(unsigned card) {
    const struct mizar_usage *usage = api_usage();
    struct counted sum = {0};
    add(&sum, &usage->copies[card]);
    for (unsigned i = 0; i < usage->slot_high; i++)
        if (usage->slots[i].copies.card == card + 1) add(&sum, &usage->slots[i].copies);
    return sum;
}

static void check_is(const struct counted *expected) {
    struct counted found = counted_on(0);
    for (int kind = 0; kind < KINDS; kind++) {
        CHECK_IS(found.count[kind], expected->count[kind]);
        CHECK_IS(found.bytes[kind], expected->bytes[kind]);
    }
}

/* ---- each of them ---- */

struct call {
    const char *name;
    CUresult (*call)(void);
    int number, waits, kind;
    uint64_t count, bytes;
};

#define FUNCTION(symbol, waits, kind, count, bytes, arguments) \
    static CUresult do_##symbol(void) {                 \
        return api.symbol arguments;                    \
    }
CALLS(FUNCTION)

#define ROW(symbol, waits, kind, count, bytes, arguments) \
    {#symbol, do_##symbol, FAKE_##symbol, waits, kind, count, bytes},
static const struct call calls[] = {CALLS(ROW)};

static void check_call(const struct call *each, struct counted *sum) {
    CUgraph graph;
    CHECK_IS(each->call(), CUDA_SUCCESS);
    CHECK_IS(fake.calls[each->number], 1); /* exactly this entry, once */
    sum->count[each->kind] += each->count;
    sum->bytes[each->kind] += each->bytes;
    check_is(sum);
    fake.fail = 999; /* what the driver refuses is not counted */
    CHECK_IS(each->call(), 999);
    check_is(sum);
    fake.fail = 0;
    CHECK_IS(api.cuStreamBeginCapture_v2(stream, 0), CUDA_SUCCESS);
    CHECK_IS(each->call(), CUDA_SUCCESS); /* nor what is recorded */
    CHECK_IS(api.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    check_is(sum);
}

static void all(void) {
    struct counted sum = {0};
    for (size_t i = 0; i < COUNT(calls); i++) check_call(&calls[i], &sum);
}

/* From each type of memory to each. */
static void directions(void) {
    static const int types[] = {HOST, DEVICE, ARRAY, UNIFIED};
    static const int expected[4][4] = {{OTHER, TO_DEVICE, TO_DEVICE, OTHER},
                                       {TO_HOST, DEVICES, DEVICES, OTHER},
                                       {TO_HOST, DEVICES, DEVICES, OTHER},
                                       {OTHER, OTHER, OTHER, OTHER}};
    struct counted sum = {0};
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            CUDA_MEMCPY2D copy = {.from_type = types[from], .to_type = types[to], .width = 3};
            copy.height = 2;
            CHECK_IS(api.cuMemcpy2D_v2(&copy), CUDA_SUCCESS);
            sum.count[expected[from][to]]++;
            sum.bytes[expected[from][to]] += 6;
            check_is(&sum);
        }
    CHECK_IS(api.cuMemcpyHtoD_v2(THERE, host, 0), CUDA_SUCCESS); /* copies nothing */
    check_is(&sum);
    fake.fail = CUDA_ERROR_INVALID_VALUE; /* invalid arguments are for the driver to report */
    CHECK_IS(api.cuMemcpy2D_v2(NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_IS(api.cuMemcpy3DAsync_v2(NULL, stream), CUDA_ERROR_INVALID_VALUE);
    check_is(&sum);
}

/* Every way in which a capture begins and ends; one that fails, and an end without a beginning. */
static void captures(void) {
    struct counted sum = {0};
    CUgraph graph;
#define CASE(begin, end)                                                           \
    fake.fail = 999;                                                               \
    CHECK_IS(begin, 999);                                                          \
    fake.fail = 0;                                                                 \
    CHECK_IS(end, CUDA_SUCCESS);                                                   \
    CHECK_IS(api.cuMemsetD8Async(THERE, 0, 10, stream), CUDA_SUCCESS);             \
    sum.count[SET]++, sum.bytes[SET] += 10;                                        \
    check_is(&sum);                                                                \
    CHECK_IS(begin, CUDA_SUCCESS);                                                 \
    CHECK_IS(api.cuMemsetD8Async(THERE, 0, 10, stream), CUDA_SUCCESS);             \
    fake.fail = 999;                                                               \
    CHECK_IS(end, 999); /* the capture goes on */                                  \
    fake.fail = 0;                                                                 \
    CHECK_IS(api.cuMemsetD8Async(THERE, 0, 10, stream), CUDA_SUCCESS);             \
    CHECK_IS(end, CUDA_SUCCESS);                                                   \
    check_is(&sum);
    CASE(api.cuStreamBeginCapture(stream), api.cuStreamEndCapture(stream, &graph))
    CASE(api.cuStreamBeginCapture_ptsz(NULL), api.cuStreamEndCapture_ptsz(NULL, &graph))
    CASE(api.cuStreamBeginCapture_v2(stream, 2), api.cuStreamEndCapture(stream, &graph))
    CASE(api.cuStreamBeginCapture_v2_ptsz(NULL, 2), api.cuStreamEndCapture_ptsz(NULL, &graph))
    CASE(api.cuStreamBeginCaptureToGraph(stream, NULL, NULL, NULL, 0, 2),
         api.cuStreamEndCapture(stream, &graph))
    CASE(api.cuStreamBeginCaptureToGraph_ptsz(NULL, NULL, NULL, NULL, 0, 2),
         api.cuStreamEndCapture_ptsz(NULL, &graph))
    CASE(api.cuStreamBeginRecaptureToGraph(stream, 2, NULL, NULL, NULL),
         api.cuStreamEndCapture(stream, &graph))
    CASE(api.cuStreamBeginRecaptureToGraph_ptsz(NULL, 2, NULL, NULL, NULL),
         api.cuStreamEndCapture_ptsz(NULL, &graph))
    CASE(api.cuStreamBeginCaptureToCig(stream, NULL), api.cuStreamEndCaptureToCig(stream))
    CASE(api.cuStreamBeginCaptureToCig_ptsz(NULL, NULL), api.cuStreamEndCaptureToCig_ptsz(NULL))
}

/* The stream's card counts, not the current context's; a foreign one does not. */
static void cards(void) {
    CUstream other;
    api_use(1);
    CHECK_IS(cuStreamCreate(&other, 0), CUDA_SUCCESS);
    CHECK_IS(api.cuMemcpyHtoD_v2(THERE, host, 100), CUDA_SUCCESS);
    api_use(0);
    CHECK_IS(api.cuMemcpyHtoDAsync_v2(THERE, host, 10, other), CUDA_SUCCESS);
    CHECK_IS(api.cuMemcpyDtoHAsync_v2(host, HERE, 1, stream), CUDA_SUCCESS);
    fake_use(2);
    CHECK_IS(api.cuMemcpyDtoH_v2(host, HERE, 1), CUDA_SUCCESS);
    CHECK_IS(counted_on(0).bytes[TO_DEVICE], 0);
    CHECK_IS(counted_on(0).bytes[TO_HOST], 1);
    CHECK_IS(counted_on(1).bytes[TO_DEVICE], 110);
    CHECK_IS(counted_on(1).count[TO_DEVICE], 2);
    CHECK_IS(counted_on(1).bytes[TO_HOST], 0);
    CHECK_IS(counted_on(2).bytes[TO_HOST], 0);
}

/* ---- waits: a thread returns the rest of its grants ---- */

static bool is_threads_own(const char *name) {
    return strstr(name, "_ptds") != NULL;
}

static CUresult wait_for_all(void) {
    return api.cuCtxSynchronize();
}

static CUresult wait_for_event(void) {
    static CUevent event;
    if (!event) CHECK_IS(cuEventCreate(&event, 0), CUDA_SUCCESS);
    return api.cuEventSynchronize(event);
}

/* The stream that was used last has nothing to give back. */
static CUresult wait_for_stream_and_all(void) {
    CHECK_IS(api.cuStreamSynchronize(stream), CUDA_SUCCESS);
    return api.cuCtxSynchronize();
}

static void wait_for(CUstream on) {
    CHECK(gives_back(wait_for_all, on));
    CHECK(gives_back(wait_for_event, on));
}

static void metered(void) {
    wait_for(stream);
    wait_for((CUstream)(uintptr_t)CU_STREAM_LEGACY);
    wait_for((CUstream)(uintptr_t)CU_STREAM_PER_THREAD);
    CHECK(gives_back(wait_for_stream_and_all, (CUstream)(uintptr_t)CU_STREAM_LEGACY));

    for (size_t i = 0; i < COUNT(calls); i++) {
        const struct call *each = &calls[i];
        bool own = is_threads_own(each->name);
        CUstream its = (CUstream)(uintptr_t)(own ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY);
        CHECK_IS(gives_back(each->call, its), each->waits);
        CHECK_IS(gives_back(each->call, stream), each->waits && !own);
    }
    CHECK(api_usage()->cards[0].compute.charged_ns > 0);
}

/* ---- streams that are stalled by a copy ---- */

static CUresult copy_much(void) {
    return api.cuMemcpyHtoDAsync_v2(THERE, host, 1 << 20, stream);
}

static CUresult copy_often(void) {
    for (int i = 0; i < 20; i++)
        CHECK_IS(api.cuMemcpyDtoHAsync_v2(host, HERE, 4, stream), CUDA_SUCCESS);
    return CUDA_SUCCESS;
}

static CUresult copy_within(void) {
    return api.cuMemcpyDtoDAsync_v2(THERE, HERE, 1 << 20, stream);
}

static CUresult copy_much_within(void) {
    return api.cuMemcpyDtoDAsync_v2(THERE, HERE, 64 << 20, stream);
}

static CUresult fill_much(void) {
    return api.cuMemsetD32Async(THERE, 0, 16 << 20, stream);
}

static void stalls(void) {
    CHECK(gives_back(copy_much, stream));
    CHECK(gives_back(copy_often, stream));
    CHECK(!gives_back(copy_within, stream));
    CHECK(gives_back(copy_much_within, stream));
    CHECK(gives_back(fill_much, stream));
}

/* ---- at once ---- */

#define THREADS 8
#define TIMES 20000

static void *copy_many(void *unused) {
    (void)unused;
    api_use(0);
    for (int i = 0; i < TIMES; i++) {
        CHECK_IS(api.cuMemcpyHtoDAsync_v2(THERE, host, 3, stream), CUDA_SUCCESS);
        CHECK_IS(api.cuMemcpyDtoH_v2(host, HERE, 5), CUDA_SUCCESS);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all_of_them[THREADS];
    fake.uncounted = 1;
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&all_of_them[i], NULL, copy_many, NULL));
    for (int i = 0; i < THREADS; i++) pthread_join(all_of_them[i], NULL);
    struct counted sum = {{THREADS * TIMES, THREADS * TIMES},
                          {3 * THREADS * TIMES, 5 * THREADS * TIMES}};
    check_is(&sum);
}

static const struct test_case cases[] = {
    {"all", all},     {"directions", directions}, {"captures", captures},
    {"cards", cards}, {"metered", metered},       {"stalls", stalls},
    {"threads", threads},
};

int main(int count, char **arguments) {
    if (count < 3) return cases_list(cases, COUNT(cases)), 0;
    api_load(arguments[2]);
    api_start();
    CHECK_IS(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    cases_run(cases, COUNT(cases), arguments[1]);
    return 0;
}
