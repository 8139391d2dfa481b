#include "meter.h"

#include <string.h>

#include "budget.h"
#include "cards.h"
#include "charge.h"
#include "costs.h"
#include "stamps.h"
#include "sys.h"

#define METERS_MAX 32
#define BATCHES_MAX 64
#define QUANTUM INT64_C(1000000)      /* ns granted at once ... */
#define QUANTUM_FREE INT64_C(5000000) /* ... and where nothing is limited */
#define UNKNOWN_COST UINT64_C(20000)  /* ns, of work that was never measured */
#define LOOK_FIRST UINT64_C(30000)    /* ns, to see whether the card has gone on ... */
#define LOOK_LAST UINT64_C(1000000)   /* ... and at longest */
#define UNLIMITED_COST 1000           /* what a launch pays where nothing is limited ... */
#define UNLIMITED_CREDIT INT64_C(1000000) /* ... so that a new limit is noticed */

THREADS_OWN struct lane lanes[1 << LANES_BITS];

/* Work between two stamps. */
struct batch {
    uint16_t begin, end;  /* stamps */
    bool dense;           /* the card was busy with it without a break */
    bool doubtful;        /* its cost may turn out to be quite another */
    const void *work;     /* if it is one piece of work: what */
    uint64_t reserved;    /* ns */
    uint64_t likely;      /* what it will probably take of that */
};

/* Of one context. */
struct meter {
    CUcontext context; /* NULL: free */
    int card;
    uint32_t lock;
    uint32_t first, count; /* of the batches that are not settled, a ring */
    uint32_t doubtful;     /* so many of them are */
    uint64_t queue;        /* ns that they will probably take */
    uint64_t moved_at;     /* when the card last got something done, or had nothing to do */
    struct batch batches[BATCHES_MAX];
    struct stamps stamps;
};

/* Of the process: wiped by fork, as all of it is. */
struct metering {
    uint32_t lock;
    struct meter meters[METERS_MAX];
};

static struct batch *batch_at(struct meter *meter, unsigned i) {
    return &meter->batches[(meter->first + i) % BATCHES_MAX];
}

/* ---- the meters of a process ------------------------------------------------------------------- */

static struct metering *metering_new(struct process *process) {
    struct metering *none = NULL;
    struct metering *made = process_map(sizeof *made);
    if (!made) return NULL;
    if (__atomic_compare_exchange_n(&process->metering, &none, made, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return made;
    sys_unmap(made, sizeof *made);
    return none;
}

static struct metering *metering_of(struct regions *regions) {
    struct metering *known = __atomic_load_n(&regions->process->metering, __ATOMIC_ACQUIRE);
    return known ? known : metering_new(regions->process);
}

static struct meter *find(struct metering *metering, CUcontext context) {
    for (unsigned i = 0; i < METERS_MAX; i++)
        if (__atomic_load_n(&metering->meters[i].context, __ATOMIC_ACQUIRE) == context)
            return &metering->meters[i];
    return NULL;
}

static struct meter *add(struct metering *metering, CUcontext context, int card) {
    process_lock(&metering->lock);
    struct meter *meter = find(metering, context);
    if (!meter && (meter = find(metering, NULL))) {
        meter->card = card;
        __atomic_store_n(&meter->context, context, __ATOMIC_RELEASE);
    }
    process_unlock(&metering->lock);
    return meter;
}

/* NULL: the work cannot be measured (too many contexts, none is current). */
static struct meter *meter_of(struct regions *regions, uintptr_t stream) {
    struct metering *metering = metering_of(regions);
    CUcontext context = NULL;
    CUdevice device;
    CUresult result = stream <= CU_STREAM_PER_THREAD ? REAL(cuCtxGetCurrent)(&context)
                                                     : REAL(cuStreamGetCtx)((CUstream)stream, &context);
    if (!metering || result != CUDA_SUCCESS || !context) return NULL;
    struct meter *meter = find(metering, context);
    if (meter) return meter;
    if (cards_stream_device((CUstream)stream, &device) != CUDA_SUCCESS) return NULL;
    int card = cards_of_device(regions, device);
    return card == CARD_NONE ? NULL : add(metering, context, card);
}

void meter_forget(struct regions *regions, CUcontext context) {
    struct metering *metering = __atomic_load_n(&regions->process->metering, __ATOMIC_ACQUIRE);
    struct meter *meter = metering && context ? find(metering, context) : NULL;
    if (!meter) return;
    process_lock(&meter->lock);
    meter->first = meter->count = meter->doubtful = 0;
    meter->queue = 0;
    uint32_t serial = meter->stamps.serial;
    memset(&meter->stamps, 0, sizeof meter->stamps);
    meter->stamps.serial = serial; /* lanes remember serials */
    __atomic_store_n(&meter->context, NULL, __ATOMIC_RELEASE);
    process_unlock(&meter->lock);
}

/* ---- settling what the card has done ------------------------------------------------------------ */

/* Calls that look at events are refused while some stream of the thread is captured, unless ... */
static int relax_capture(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static void restore_capture(int mode) {
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static void charge(struct regions *regions, struct meter *meter, const struct batch *batch) {
    uint64_t from = stamps_at(&meter->stamps, batch->begin);
    uint64_t to = stamps_at(&meter->stamps, batch->end);
    if (to < from) to = from;
    if (batch->work) costs_learn(batch->work, to - from);
    if (!batch->dense) to = smaller(to, from + batch->reserved);
    budget_settle(regions, meter->card, from, to, batch->reserved);
}

/* Where the card cannot tell, what was reserved stays charged. */
static bool settle(struct regions *regions, struct meter *meter, struct batch *batch, uint64_t now) {
    enum stamp_state begin = stamps_look(&meter->stamps, batch->begin, now);
    enum stamp_state end = begin == STAMP_PASSED ? stamps_look(&meter->stamps, batch->end, now)
                                                 : begin;
    if (end == STAMP_AHEAD) return false;
    if (end == STAMP_PASSED) charge(regions, meter, batch);
    uint64_t ended = end == STAMP_PASSED ? stamps_at(&meter->stamps, batch->end) : now;
    if (ended > meter->moved_at) meter->moved_at = ended;
    stamps_drop(&meter->stamps, batch->begin);
    stamps_drop(&meter->stamps, batch->end);
    meter->queue -= smaller(batch->likely, meter->queue);
    meter->doubtful -= batch->doubtful;
    return true;
}

/* What others of the container may count with while it is not settled. */
static void tell(struct regions *regions, struct meter *meter, uint64_t now) {
    uint64_t since = now;
    if (meter->count) {
        const struct batch *oldest = batch_at(meter, 0);
        const struct stamp *begin = &meter->stamps.all[oldest->begin];
        since = begin->at ? begin->at : begin->recorded_at;
    }
    budget_open(regions, meter->card, meter->count ? since : 0, now + 2 * meter->queue);
}

/* The caller holds the meter's lock. */
static void reap(struct regions *regions, struct meter *meter, uint64_t now) {
    unsigned left = 0, count = meter->count;
    for (unsigned i = 0; i < count; i++) {
        struct batch *batch = batch_at(meter, i);
        if (!settle(regions, meter, batch, now)) *batch_at(meter, left++) = *batch;
    }
    if (!left) meter->moved_at = now;
    meter->count = left;
    tell(regions, meter, now);
}

/* ---- batches ------------------------------------------------------------------------------------- */

static void push(struct meter *meter, struct batch batch) {
    if (!batch.begin || !batch.end || meter->count == BATCHES_MAX) return;
    stamps_keep(&meter->stamps, batch.begin);
    stamps_keep(&meter->stamps, batch.end);
    *batch_at(meter, meter->count++) = batch;
    meter->queue += batch.likely;
    meter->doubtful += batch.doubtful;
}

/* Is the lane's grant measured by this meter, and still to be ended? */
static bool is_open(const struct lane *lane, const struct meter *meter, uintptr_t name) {
    return lane->name == name && lane->meter == meter && lane->begin &&
           meter->stamps.all[lane->begin].serial == lane->begin_serial;
}

/*
 * What the thread was granted for the stream is measured up to `end`; the rest is given back. Is
 * the card still at it? Then there was no break: work was always waiting.
 */
static void close_lane(struct regions *regions, struct lane *lane, uint16_t end, uint64_t now) {
    struct meter *meter = lane->meter;
    uint64_t left = lane->credit > 0 ? (uint64_t)lane->credit : 0;
    struct batch batch = {.begin = lane->begin, .end = end,
                          .dense = stamps_look(&meter->stamps, end, now) == STAMP_AHEAD,
                          .reserved = (uint64_t)lane->granted - left,
                          .likely = (uint64_t)lane->granted - left};
    budget_refund(regions, meter->card, left);
    if (batch.reserved) push(meter, batch);
    lane->begin = 0;
    lane->credit = lane->granted = 0;
}

/* ---- a launch ------------------------------------------------------------------------------------ */

/* Whoever had the place in the thread's table before loses what it was granted. */
static void grant(uintptr_t name, uint64_t ns, struct meter *meter, uint16_t begin) {
    uint32_t serial = begin ? meter->stamps.all[begin].serial : 0;
    *lanes_place(name) = (struct lane){name, (int64_t)ns, (int64_t)ns, meter, serial, begin};
}

/* Nothing is limited here: but look again some launches later. */
static void grant_unlimited(const struct piece *piece) {
    costs_mark(piece->work, UNLIMITED_COST);
    grant(piece->name, UNLIMITED_CREDIT, NULL, 0);
}

/* Of the legacy stream that cannot be asked while another one is captured: nothing may touch it. */
static bool is_captured(uintptr_t stream) {
    int status = 0;
    CUresult result = REAL(cuStreamIsCapturing)((CUstream)stream, &status);
    return result == CUDA_SUCCESS ? status : result != CUDA_ERROR_NOT_FOUND;
}

/* What is on the card, less what it must have done of the oldest batch meanwhile. */
static uint64_t queue_of(struct meter *meter, uint64_t now) {
    if (!meter->count) return 0;
    uint64_t done = smaller(now > meter->moved_at ? now - meter->moved_at : 0, batch_at(meter, 0)->likely);
    return meter->queue - smaller(done, meter->queue);
}

static bool admitted(struct piece *piece, struct terms *terms, uint64_t now, uint64_t *again) {
    struct meter *meter = piece->meter;
    struct ask ask = {.now = now, .cost = piece->cost, .likely = piece->likely,
                      .queue = queue_of(meter, now)};
    bool unknown = piece->kind == COSTS_UNKNOWN && meter->doubtful;
    if (terms->longest < piece->cost) terms->longest = piece->cost;
    if (unknown || meter->count >= BATCHES_MAX - 2) return false;
    piece->extra = (uint64_t)(terms_free(terms) ? QUANTUM_FREE : QUANTUM);
    if (piece->cost >= piece->extra) piece->extra = 0;
    return budget_take(piece->regions, piece->card, terms, &ask, &piece->extra, again);
}

static void look_up_cost(struct piece *piece) {
    piece->kind = costs_of(piece->work, &piece->cost, &piece->likely);
    if (piece->kind == COSTS_UNKNOWN) piece->cost = piece->likely = UNKNOWN_COST;
}

/* Work that may be over sooner than was said is looked at soon, and then less and less often. */
static uint64_t when_to_look(const struct meter *meter, uint64_t now, uint64_t again,
                             uint64_t *patience) {
    bool soon = meter->doubtful || meter->count >= BATCHES_MAX - 2;
    uint64_t look = now + *patience;
    if (soon && *patience < LOOK_LAST) *patience += *patience / 2;
    return soon ? smaller(look, again) : again;
}

/* Waits for the launch's turn. False: there is no limit any more. Lets the lock go meanwhile. */
static bool await_turn(struct piece *piece, bool *waited) {
    struct terms terms;
    uint64_t patience = LOOK_FIRST;
    for (*waited = false;; *waited = true) {
        uint32_t wake = budget_wake(piece->regions, piece->card);
        uint64_t now = budget_now(), again = UINT64_MAX;
        if (!budget_terms(piece->regions, piece->card, now, &terms)) return false;
        reap(piece->regions, piece->meter, now);
        look_up_cost(piece);
        budget_want(piece->regions, piece->card, now, piece->cost);
        if (admitted(piece, &terms, now, &again)) return true;
        again = when_to_look(piece->meter, now, again, &patience);
        process_unlock(&piece->meter->lock);
        budget_wait(piece->regions, piece->card, wake, now, again);
        process_lock(&piece->meter->lock);
    }
}

/* The launch that did not get through was subtracted already. */
static void undo_payment(struct lane *lane, const void *work) {
    uint64_t cost, likely;
    costs_of(work, &cost, &likely);
    if (lane->credit < 0) lane->credit += (int64_t)cost;
}

/* Ends what the thread had; returns the stamp of the end, which is also the next beginning. */
static uint16_t end_grant(struct piece *piece) {
    struct lane *lane = lanes_place(piece->name);
    struct meter *meter = piece->meter;
    uint64_t now = budget_now();
    if (!is_open(lane, meter, piece->name)) return 0;
    undo_payment(lane, piece->work);
    uint16_t end = stamps_record(&meter->stamps, (CUstream)piece->stream, now);
    if (end) close_lane(piece->regions, lane, end, now);
    return stamps_keep(&meter->stamps, end);
}

/* The caller holds the meter's lock. */
static void begin_measured(struct piece *piece) {
    struct stamps *stamps = &piece->meter->stamps;
    bool waited;
    uint16_t begin = end_grant(piece);
    bool limited = await_turn(piece, &waited);
    if (!begin || waited) {
        stamps_drop(stamps, begin);
        begin = stamps_keep(stamps, stamps_record(stamps, (CUstream)piece->stream, budget_now()));
    }
    piece->begin = begin;
    if (limited) return;
    stamps_drop(stamps, begin);
    piece->meter = NULL;
}

static bool is_limited(struct piece *piece) {
    struct terms terms;
    return budget_terms(piece->regions, piece->card, budget_now(), &terms);
}

static void run_measured(struct piece *piece, void (*step)(struct piece *piece)) {
    struct meter *meter = piece->meter;
    int mode = relax_capture();
    process_lock(&meter->lock);
    step(piece);
    process_unlock(&meter->lock);
    restore_capture(mode);
}

/*
 * The default streams are others for each context. With one card that is all the same for who
 * pays; with several, the name tells the contexts apart, which no launch finds by itself.
 */
static uintptr_t lane_name(const struct piece *piece) {
    bool several = piece->regions && piece->regions->process->card_count > 1;
    CUcontext context = NULL;
    if (!several || piece->stream > CU_STREAM_PER_THREAD) return piece->stream;
    REAL(cuCtxGetCurrent)(&context);
    return (uintptr_t)context + piece->stream;
}

CUresult meter_begin(struct piece *piece, const void *work, uintptr_t stream) {
    *piece = (struct piece){.work = work, .stream = stream};
    CUresult result = shim_enter(&piece->regions);
    if (result != CUDA_SUCCESS) return result;
    piece->name = lane_name(piece);
    if (piece->name != stream && lanes_pay(work, piece->name)) return CUDA_SUCCESS;
    if (piece->regions && is_captured(stream)) return CUDA_SUCCESS;
    piece->meter = piece->regions ? meter_of(piece->regions, stream) : NULL;
    if (piece->meter) piece->card = piece->meter->card;
    if (piece->meter && is_limited(piece)) {
        run_measured(piece, begin_measured);
    } else {
        piece->meter = NULL;
        grant_unlimited(piece);
    }
    return CUDA_SUCCESS;
}

static void end_measured(struct piece *piece) {
    struct meter *meter = piece->meter;
    uint16_t end = stamps_record(&meter->stamps, (CUstream)piece->stream, budget_now());
    push(meter, (struct batch){.begin = piece->begin, .end = end, .dense = true,
                               .doubtful = piece->kind != COSTS_STEADY, .work = piece->work,
                               .reserved = piece->cost, .likely = piece->likely});
    stamps_drop(&meter->stamps, piece->begin);
    grant(piece->name, piece->extra, meter, end);
}

static void end_failed(struct piece *piece) {
    stamps_drop(&piece->meter->stamps, piece->begin);
    budget_refund(piece->regions, piece->card, piece->cost + piece->extra);
}

CUresult meter_end(struct piece *piece, CUresult result) {
    if (piece->meter) run_measured(piece, result == CUDA_SUCCESS ? end_measured : end_failed);
    return result;
}

/* ---- waits --------------------------------------------------------------------------------------- */

static void end_waiting(struct piece *piece) {
    stamps_drop(&piece->meter->stamps, end_grant(piece));
}

void meter_before_wait(uintptr_t stream) {
    struct piece piece = {.regions = shim_known(), .stream = stream};
    if (!piece.regions) return;
    piece.name = lane_name(&piece);
    struct lane *lane = lanes_place(piece.name);
    if (lane->name != piece.name || !lane->begin || is_captured(stream)) return;
    piece.meter = meter_of(piece.regions, stream);
    if (!piece.meter || piece.meter != lane->meter) return;
    piece.card = piece.meter->card;
    run_measured(&piece, end_waiting);
}

/* Whoever finds another thread at it leaves it to that one. */
static void reap_meter(struct regions *regions, struct meter *meter) {
    if (!__atomic_load_n(&meter->count, __ATOMIC_RELAXED) || !process_try_lock(&meter->lock)) return;
    int mode = relax_capture();
    reap(regions, meter, budget_now());
    restore_capture(mode);
    process_unlock(&meter->lock);
}

void meter_after_wait(void) {
    struct regions *regions = shim_known();
    struct metering *metering =
        regions ? __atomic_load_n(&regions->process->metering, __ATOMIC_ACQUIRE) : NULL;
    for (unsigned i = 0; metering && i < METERS_MAX; i++) reap_meter(regions, &metering->meters[i]);
}
