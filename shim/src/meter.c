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
#define VARIED_FOR UINT64_C(1000000000) /* ns, for which a varying function is reckoned with */
#define SURPRISE UINT64_C(1000000)     /* ns */
#define ONCE 16u                       /* nothing overlaps */
#define OVERLAP_MOST (8 * ONCE)
#define OVERLAP_OVER UINT64_C(20000000) /* ns of the card's time, from which it is learned */
#define LOOK_FIRST UINT64_C(30000)    /* ns, to see whether the card has gone on ... */
#define LOOK_LAST UINT64_C(1000000)   /* ... and at longest */
#define UNLIMITED_COST 1000           /* what a launch pays where nothing is limited ... */
#define UNLIMITED_CREDIT INT64_C(1000000) /* ... so that a new limit is noticed */

THREADS_OWN struct lanes lanes;

/* Work between two stamps. */
struct batch {
    uint16_t begin, end;  /* stamps */
    bool sparse;          /* at its end, the card had been waiting for work */
    bool doubtful;        /* its cost may turn out to be quite another */
    bool varies;          /* its cost is not always the same */
    const void *work;     /* if it is one piece of work: what */
    uint64_t cost;        /* ns, of its launches */
    uint64_t reserved;    /* less, where launches overlap */
    uint64_t likely;      /* what it will probably take of that */
    uint64_t launched_at; /* it cannot have begun before */
};

/* Of one context. */
struct meter {
    CUcontext context; /* NULL: free */
    int card;
    uint32_t lock;
    uint32_t first, count; /* of the batches that are not settled, a ring */
    uint32_t doubtful;     /* so many of them are */
    uint64_t queue;        /* ns that they will probably take */
    uint64_t overlap;      /* ONCE times the work that is done at a time; 0: not known */
    uint64_t worked, took; /* ns by what launches cost, and of the card's time, of late */
    uint64_t moved_at;     /* when the card last got something done, or had nothing to do */
    struct batch batches[BATCHES_MAX];
    struct stamps stamps;
};

/* Of the process: wiped by fork, as all of it is. */
struct metering {
    uint32_t lock;
    uint64_t varied_at; /* when work of varying costs was last launched */
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

/* Read without the lock by who only wants to know whether there is anything. */
static void set_count(struct meter *meter, unsigned count) {
    __atomic_store_n(&meter->count, count, __ATOMIC_RELAXED);
}

void meter_forget(struct regions *regions, CUcontext context) {
    struct metering *metering = __atomic_load_n(&regions->process->metering, __ATOMIC_ACQUIRE);
    struct meter *meter = metering && context ? find(metering, context) : NULL;
    if (!meter) return;
    process_lock(&meter->lock);
    meter->first = meter->doubtful = 0;
    set_count(meter, 0);
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

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Longer than it is said to take, and by more than chance and a change of processes add. */
static bool is_surprise(const struct batch *batch, uint64_t ns) {
    return batch->work && ns > 2 * batch->cost + SURPRISE;
}

/*
 * Work of steady costs takes what they say and no more: the card may have been with others in
 * between, or have waited for us. Of other work, as long as it was on the card is all we know.
 */
static uint64_t at_most(const struct batch *batch, uint64_t ns, bool alone) {
    bool cost_is_wrong = batch->varies || (alone && is_surprise(batch, ns));
    return cost_is_wrong && !batch->sparse ? ns : smaller(batch->cost, ns);
}

/* Kernels of several streams may run side by side: together they take less than each by itself. */
static uint64_t overlap_of(const struct meter *meter) {
    return meter->overlap ? meter->overlap : ONCE;
}

static void learn_overlap(struct meter *meter, uint64_t worked, uint64_t took) {
    meter->worked += worked;
    meter->took += took;
    if (meter->took < OVERLAP_OVER) return;
    uint64_t times = meter->worked * ONCE / meter->took;
    meter->overlap = smaller(larger(times, ONCE), OVERLAP_MOST);
    meter->worked /= 2;
    meter->took /= 2;
}

static void charge(struct regions *regions, struct meter *meter, const struct batch *batch,
                   uint64_t since) {
    uint64_t began = stamps_at(&meter->stamps, batch->begin);
    struct done done = {.from = larger(began, batch->launched_at), .reserved = batch->reserved,
                        .to = stamps_at(&meter->stamps, batch->end)};
    done.to = larger(done.to, done.from);
    done.since = smaller(since, done.from);
    uint64_t ns = done.to - done.from;
    uint64_t own = budget_own_part(regions, meter->card, done.from, done.to);
    done.most = at_most(batch, ns, own == ns);
    if (batch->work) costs_learn(batch->work, own, own == ns && !batch->sparse);
    uint64_t took = budget_settle(regions, meter->card, &done);
    if (!batch->varies) learn_overlap(meter, batch->cost, took);
}

/* Where the card cannot tell, what was reserved stays charged. */
static bool settle(struct regions *regions, struct meter *meter, struct batch *batch,
                   uint64_t since, uint64_t now) {
    enum stamp_state begin = stamps_look(&meter->stamps, batch->begin, now);
    enum stamp_state end = begin == STAMP_PASSED ? stamps_look(&meter->stamps, batch->end, now)
                                                 : begin;
    if (end == STAMP_AHEAD) return false;
    if (end == STAMP_PASSED) charge(regions, meter, batch, since);
    uint64_t ended = end == STAMP_PASSED ? stamps_at(&meter->stamps, batch->end) : now;
    if (ended > meter->moved_at) meter->moved_at = ended;
    stamps_drop(&meter->stamps, batch->begin);
    stamps_drop(&meter->stamps, batch->end);
    meter->queue -= smaller(batch->likely, meter->queue);
    meter->doubtful -= batch->doubtful;
    return true;
}

static uint64_t queue_of(struct meter *meter, uint64_t now);

/* Since when there is work on the card that is not settled: now, if there is none. */
static uint64_t open_since(struct meter *meter, uint64_t now) {
    if (!meter->count) return now;
    const struct batch *oldest = batch_at(meter, 0);
    const struct stamp *begin = &meter->stamps.all[oldest->begin];
    return larger(begin->at ? begin->at : begin->recorded_at, oldest->launched_at);
}

/* The caller holds the meter's lock. */
static void reap(struct regions *regions, struct meter *meter, uint64_t now) {
    unsigned left = 0, count = meter->count;
    uint64_t since = open_since(meter, now);
    for (unsigned i = 0; i < count; i++) {
        struct batch *batch = batch_at(meter, i);
        if (!settle(regions, meter, batch, since, now)) *batch_at(meter, left++) = *batch;
    }
    if (!left) meter->moved_at = now;
    set_count(meter, left);
    /* Others of the container reckon with this while it is not settled. */
    budget_open(regions, meter->card, left ? open_since(meter, now) : 0, now + queue_of(meter, now));
}

/* ---- batches ------------------------------------------------------------------------------------- */

static void push(struct meter *meter, struct batch batch) {
    if (!batch.begin || !batch.end || meter->count == BATCHES_MAX) return;
    stamps_keep(&meter->stamps, batch.begin);
    stamps_keep(&meter->stamps, batch.end);
    *batch_at(meter, meter->count) = batch;
    set_count(meter, meter->count + 1);
    meter->queue += batch.likely;
    meter->doubtful += batch.doubtful;
}

/* Is the lane's grant measured by this meter, and still to be ended? */
static bool is_open(const struct lane *lane, const struct meter *meter) {
    return lane->meter == meter && lane->begin &&
           meter->stamps.all[lane->begin].serial == lane->begin_serial;
}

/* What the thread was granted for the stream is measured up to `end`; the rest is given back. */
static void close_lane(struct regions *regions, struct lane *lane, uint16_t end) {
    struct meter *meter = lane->meter;
    uint64_t left = lane->credit > 0 ? (uint64_t)lane->credit : 0;
    uint64_t used = lane->granted - left, reserved = used * ONCE / lane->overlap;
    bool varied = budget_now() - regions->process->metering->varied_at < VARIED_FOR;
    struct batch batch = {.begin = lane->begin, .end = end, .varies = varied, .cost = used,
                          .reserved = reserved, .likely = used};
    budget_refund(regions, meter->card, left * ONCE / lane->overlap);
    if (used) push(meter, batch);
    lane->begin = 0;
    lane->credit = 0;
    lane->granted = 0;
}

/* ---- a launch ------------------------------------------------------------------------------------ */

/* A stream that makes way for another: it may be gone, so its work is taken for what it cost. */
static void evict(struct regions *regions, struct lane *lane) {
    if (regions && lane->meter && lane->begin && lane->credit > 0)
        budget_refund(regions, lane->meter->card, (uint64_t)lane->credit * ONCE / lane->overlap);
}

struct lane *lanes_search(uintptr_t name) {
    for (uint32_t i = 0; i < LANES_MAX; i++)
        if (lanes.all[i].name == name) {
            lanes.last = i;
            return &lanes.all[i];
        }
    return NULL;
}

/* The stream's own lane, or a free one, or the one whose owner has least to lose. */
static struct lane *take_lane(struct regions *regions, uintptr_t name) {
    struct lane *own = lanes_find(name), *best = own ? own : &lanes.all[0];
    for (uint32_t i = 0; !own && i < LANES_MAX; i++)
        if (!lanes.all[i].name || lanes.all[i].credit < best->credit) best = &lanes.all[i];
    if (!own) evict(regions, best);
    return best;
}

static uint32_t streams_ended(const struct regions *regions) {
    return regions ? __atomic_load_n(&regions->process->streams_ended, __ATOMIC_ACQUIRE) : 0;
}

static void grant(const struct piece *piece, uint64_t ns, struct meter *meter, uint16_t begin) {
    uint16_t overlap = piece->overlap ? piece->overlap : ONCE;
    uint32_t serial = begin ? meter->stamps.all[begin].serial : 0;
    uint32_t credit = (uint32_t)(ns * overlap / ONCE);
    *take_lane(piece->regions, piece->name) = (struct lane){
        .name = piece->name, .credit = credit, .granted = credit, .meter = meter,
        .begin_serial = serial, .ended = streams_ended(piece->regions), .begin = begin,
        .overlap = overlap, .probed = !ns};
}

/* Nothing is limited here: but look again some launches later. */
static void grant_unlimited(const struct piece *piece) {
    costs_mark(piece->work, UNLIMITED_COST);
    grant(piece, UNLIMITED_CREDIT, NULL, 0);
}

/* Of the legacy stream that cannot be asked while another one is captured: nothing may touch it. */
static bool is_captured(uintptr_t stream) {
    int status = 0;
    CUresult result = REAL(cuStreamIsCapturing)((CUstream)stream, &status);
    return result == CUDA_SUCCESS ? status : result != CUDA_ERROR_NOT_FOUND;
}

/* Of what is not settled, the card is at work on this. */
static uint64_t begun(struct meter *meter) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < meter->count; i++)
        if (stamps_at(&meter->stamps, batch_at(meter, i)->begin)) sum += batch_at(meter, i)->likely;
    return sum;
}

/* What is on the card, less what it must have done of that meanwhile. */
static uint64_t queue_of(struct meter *meter, uint64_t now) {
    uint64_t since = now > meter->moved_at ? now - meter->moved_at : 0;
    return meter->queue - smaller(smaller(since, begun(meter)), meter->queue);
}

/*
 * What comes right after work that is on the card is measured exactly; what comes to an idle card
 * isn't. So after the latter nothing is granted, once: the next launch is measured as well.
 */
static uint64_t extra_of(const struct piece *piece, const struct terms *terms) {
    const struct lane *lane = lanes_find(piece->name);
    uint64_t quantum = (uint64_t)(terms_free(terms) ? QUANTUM_FREE : QUANTUM);
    bool probe = !piece->meter->count && !(lane && lane->probed);
    return probe || piece->cost >= quantum ? 0 : quantum;
}

/* ns of the card's time. */
static uint64_t reserved_for(const struct piece *piece) {
    return piece->cost * ONCE / piece->overlap;
}

static bool admitted(struct piece *piece, struct terms *terms, uint64_t now, uint64_t *again) {
    struct meter *meter = piece->meter;
    struct ask ask = {.now = now, .cost = reserved_for(piece), .likely = piece->likely,
                      .queue = queue_of(meter, now) * ONCE / piece->overlap};
    bool unknown = piece->kind == COSTS_UNKNOWN && meter->doubtful;
    if (terms->longest < piece->cost) terms->longest = piece->cost;
    if (unknown || meter->count >= BATCHES_MAX - 2) return false;
    piece->extra = extra_of(piece, terms);
    return budget_take(piece->regions, piece->card, terms, &ask, &piece->extra, again);
}

static void look_up_cost(struct piece *piece) {
    piece->kind = costs_of(piece->work, &piece->cost, &piece->likely);
    piece->overlap = (uint16_t)overlap_of(piece->meter);
    if (piece->kind == COSTS_UNKNOWN) piece->cost = piece->likely = UNKNOWN_COST;
    if (piece->kind != COSTS_STEADY) piece->regions->process->metering->varied_at = budget_now();
}

/* Work that may be over sooner than was said is looked at soon, and then less and less often. */
static uint64_t when_to_look(const struct meter *meter, uint64_t now, uint64_t again,
                             uint64_t *patience) {
    bool soon = meter->doubtful || meter->count >= BATCHES_MAX - 2;
    uint64_t look = now + *patience;
    if (soon && *patience < LOOK_LAST) *patience += *patience / 2;
    return soon ? smaller(look, again) : again;
}

/* Default streams always are; the names of those of several cards are no handles. */
static bool may_touch(const struct regions *regions, const struct lane *lane) {
    bool handle = lane->name <= CU_STREAM_PER_THREAD || lane->name % sizeof(void *) == 0;
    return handle && lane->ended == streams_ended(regions) && !is_captured(lane->name);
}

/*
 * The thread will wait: what it launched to other streams is measured up to now, or the wait would
 * be taken for work of theirs. Unless some stream has ended, since it might be one of them.
 */
static void close_others(const struct piece *piece, uint64_t now) {
    struct stamps *stamps = &piece->meter->stamps;
    for (struct lane *lane = lanes.all; lane < lanes.all + LANES_MAX; lane++) {
        if (lane->name == piece->name || !is_open(lane, piece->meter) ||
            !may_touch(piece->regions, lane))
            continue;
        uint16_t end = stamps_record(stamps, (CUstream)lane->name, now);
        if (end) close_lane(piece->regions, lane, end);
    }
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
        if (!*waited) close_others(piece, now);
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
    struct lane *lane = lanes_find(piece->name);
    struct meter *meter = piece->meter;
    uint64_t now = budget_now();
    if (!lane || !is_open(lane, meter)) return 0;
    undo_payment(lane, piece->work);
    uint16_t end = stamps_record(&meter->stamps, (CUstream)piece->stream, now);
    if (end) close_lane(piece->regions, lane, end);
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
        piece->launched_at = budget_now();
    } else {
        piece->meter = NULL;
        grant_unlimited(piece);
    }
    return CUDA_SUCCESS;
}

static void end_measured(struct piece *piece) {
    struct meter *meter = piece->meter;
    uint64_t now = budget_now();
    uint16_t end = stamps_record(&meter->stamps, (CUstream)piece->stream, now);
    bool over = end && stamps_look(&meter->stamps, end, now) != STAMP_AHEAD;
    push(meter, (struct batch){.begin = piece->begin, .end = end, .sparse = over,
                               .launched_at = piece->launched_at,
                               .doubtful = piece->kind != COSTS_STEADY && piece->kind != COSTS_VARYING,
                               .varies = piece->kind != COSTS_STEADY, .work = piece->work,
                               .cost = piece->cost, .reserved = reserved_for(piece),
                               .likely = piece->likely});
    stamps_drop(&meter->stamps, piece->begin);
    grant(piece, piece->extra, meter, end);
}

static void end_failed(struct piece *piece) {
    stamps_drop(&piece->meter->stamps, piece->begin);
    budget_refund(piece->regions, piece->card, reserved_for(piece) + piece->extra);
}

CUresult meter_end(struct piece *piece, CUresult result) {
    if (piece->meter) run_measured(piece, result == CUDA_SUCCESS ? end_measured : end_failed);
    return result;
}

/* ---- waits --------------------------------------------------------------------------------------- */

static void end_waiting(struct piece *piece) {
    stamps_drop(&piece->meter->stamps, end_grant(piece));
}

void meter_before_end(CUstream stream) {
    struct regions *regions = shim_known();
    meter_before_wait((uintptr_t)stream);
    if (regions) __atomic_fetch_add(&regions->process->streams_ended, 1, __ATOMIC_RELEASE);
}

void meter_before_wait(uintptr_t stream) {
    struct piece piece = {.regions = shim_known(), .stream = stream};
    if (!piece.regions) return;
    piece.name = lane_name(&piece);
    struct lane *lane = lanes_find(piece.name);
    if (!lane || !lane->begin || is_captured(stream)) return;
    piece.meter = meter_of(piece.regions, stream);
    if (!piece.meter || piece.meter != lane->meter) return;
    piece.card = piece.meter->card;
    run_measured(&piece, end_waiting);
}

static void end_all(struct piece *piece) {
    close_others(piece, budget_now());
}

/* The thread waits for it knows what: nothing stays granted for any stream of its context. */
void meter_before_wait_for_all(void) {
    struct piece piece = {.regions = shim_known()};
    const struct lane *lane = &lanes.all[lanes.last];
    if (!piece.regions || !lane->begin) return;
    piece.meter = meter_of(piece.regions, CU_STREAM_LEGACY);
    if (piece.meter) run_measured(&piece, end_all);
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
