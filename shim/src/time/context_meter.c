#include "time/context_meter.h"

#include <string.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "base/sys.h"
#include "lookup/cards.h"
#include "lookup/resolve.h"
#include "time/container_budget.h"
#include "time/costs.h"
#include "time/charged_utilization.h"

/* ns: batches count as varying for this time after work of varying cost was launched. */
#define VARIED_FOR UINT64_C(1000000000)
/* ns: work that is overdue by this time is stuck. */
#define STUCK_AFTER UINT64_C(200000000)
/* ns: announced work counts as done this time after its expected end if no thread has looked. */
#define UNSEEN_AFTER UINT64_C(100000000)
/* A piece of work is charged at most its time plus 1/EVENS_OUT of it. */
#define EVENS_OUT 4
/* ns: see is_surprise(). */
#define SURPRISE UINT64_C(1000000)
/* ns: an idle card passes an event within this time after it was recorded. */
#define AT_ONCE UINT64_C(15000)
/* `sparse` of a meter whose recent grants all ended while the card was waiting for work. */
#define GAPS_ALL 4096
/* With more than this in `sparse`, a program leaves gaps within its grants. */
#define GAPS_FROM (GAPS_ALL / 8)
/* Number of recent grants over which `sparse` averages. */
#define GAPS_LATELY 16
/* Largest overlap: more work at a time is not assumed. */
#define OVERLAP_MOST (8 * ONCE)
/* ns of the card's time from which the overlap is learned. */
#define OVERLAP_OVER UINT64_C(20000000)

/* ---- the meters of a process ----------------------------------------------------------------- */

struct meter *context_meter_first(struct regions *regions) {
    return __atomic_load_n(&regions->process->meters, __ATOMIC_ACQUIRE);
}

static struct meter *find(struct regions *regions, CUcontext context) {
    struct meter *meter = context_meter_first(regions);
    while (meter && __atomic_load_n(&meter->context, __ATOMIC_ACQUIRE) != context)
        meter = meter->next;
    return meter;
}

static struct meter *push_new(struct regions *regions) {
    struct meter *meter = sys_map_wiped(sizeof *meter);
    if (!meter) return NULL;
    meter->next = context_meter_first(regions);
    __atomic_store_n(&regions->process->meters, meter, __ATOMIC_RELEASE);
    return meter;
}

/* The caller holds the lock. */
static struct meter *take_free(struct regions *regions, CUcontext context, int card) {
    struct meter *meter = find(regions, NULL);
    if (!meter && !(meter = push_new(regions))) return NULL;
    meter->card = card;
    __atomic_store_n(&meter->context, context, __ATOMIC_RELEASE);
    return meter;
}

static struct meter *add(struct regions *regions, CUcontext context, int card) {
    lock_take(&regions->process->meters_lock);
    struct meter *meter = find(regions, context);
    if (!meter) meter = take_free(regions, context, card);
    lock_release(&regions->process->meters_lock);
    return meter;
}

/*
 * The stream's context, or the current one if the driver does not report it. Work that cannot be
 * measured in that stays charged as it was reserved.
 */
static CUresult context_of(uintptr_t stream, CUcontext *context) {
    if (stream > CU_STREAM_PER_THREAD && (*context = cards_context((CUstream)stream)))
        return CUDA_SUCCESS;
    CUresult result = REAL(cuCtxGetCurrent)(context);
    return result == CUDA_SUCCESS && !*context ? CUDA_ERROR_INVALID_CONTEXT : result;
}

CUresult context_meter_of(struct regions *regions, uintptr_t stream, struct meter **meter) {
    CUcontext context = NULL;
    CUdevice device;
    CUresult result = context_of(stream, &context);
    if (result != CUDA_SUCCESS || (*meter = find(regions, context))) return result;
    result = cards_stream_device((CUstream)stream, &device);
    if (result != CUDA_SUCCESS) return result;
    int card = cards_of_device(regions, device);
    *meter = card == CARD_NONE ? NULL : add(regions, context, card);
    return *meter ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct meter *context_meter_known(struct regions *regions, CUcontext context) {
    return context ? find(regions, context) : NULL;
}

/* Atomic, since threads that only check whether there are batches read it without the lock. */
static void set_count(struct meter *meter, unsigned count) {
    __atomic_store_n(&meter->count, count, __ATOMIC_RELAXED);
}

/* Whether the meter has announced work on the card that is not overdue by UNSEEN_AFTER. */
static bool is_open(const struct meter *meter, int card, uint64_t now) {
    return meter->card == card && meter->open_since && meter->open_until + UNSEEN_AFTER > now;
}

/*
 * Announces the work of this process on the card, in all of its contexts, to the container's other
 * processes: from the beginning of the first until the expected end of the last.
 */
static void tell_others(struct regions *regions, struct meter *meter, uint64_t since,
                        uint64_t until, uint64_t now) {
    uint64_t first = UINT64_MAX, last = now;
    lock_take(&regions->process->meters_lock);
    meter->open_since = since;
    meter->open_until = until;
    for (const struct meter *each = context_meter_first(regions); each; each = each->next)
        if (is_open(each, meter->card, now)) {
            first = smaller(first, each->open_since);
            last = larger(last, each->open_until);
        }
    budget_open(regions, meter->card, first == UINT64_MAX ? 0 : first, last);
    lock_release(&regions->process->meters_lock);
}

void context_meter_clear(struct regions *regions, struct meter *meter) {
    uint32_t serial = meter->events.serial;
    tell_others(regions, meter, 0, 0, clock_now());
    set_count(meter, 0);
    meter->doubtful = 0;
    meter->queue = 0;
    memset(&meter->events, 0, sizeof meter->events);
    meter->events.serial = serial; /* credits remember serials */
    meter->rests = false;
    __atomic_store_n(&meter->context, NULL, __ATOMIC_RELEASE);
}

void context_meter_note_varying(struct regions *regions, uint64_t now) {
    __atomic_store_n(&regions->process->varied_at, now, __ATOMIC_RELAXED);
}

bool context_meter_vary(struct regions *regions, uint64_t now) {
    return now - __atomic_load_n(&regions->process->varied_at, __ATOMIC_RELAXED) < VARIED_FOR;
}

/* ---- settling finished work ------------------------------------------------------------ */

/*
 * Whether the work took longer than expected, by more than chance, a switch between containers and
 * neighbours' work (`others`) can add.
 */
static bool is_surprise(const struct batch *batch, uint64_t own, uint64_t others) {
    return own > 2 * batch->cost + SURPRISE + others;
}

/*
 * Whether the card was waiting for work during the batch: at its end, if it passed the end event as
 * soon as that was recorded; or before, if the program took longer to launch the batch than the
 * card took after that to finish it.
 */
static bool is_sparse(const struct meter *meter, const struct batch *batch) {
    uint64_t handed_in = meter->events.all[batch->end].recorded_at;
    uint64_t took = handed_in > batch->launched_at ? handed_in - batch->launched_at : 0;
    return batch->sparse || batch->ended_at < handed_in + larger(took, AT_ONCE);
}

/*
 * Whether the program often takes longer to prepare its work than the card takes to do it. Then a
 * grant's time by the clock includes gaps and is longer than its work.
 */
static bool leaves_gaps(const struct meter *meter) {
    return meter->sparse > GAPS_FROM;
}

static void learn_gaps(struct meter *meter, bool sparse, bool surprise) {
    meter->suspect = sparse && surprise;
    meter->sparse += ((sparse ? GAPS_ALL : 0) - meter->sparse) / GAPS_LATELY;
}

/*
 * The most ns that the batch is charged, if it was on the card for `ns`. Work of steady cost is
 * charged at most its cost, since other containers' work or gaps may lie within its time, and
 * differences between pieces cancel out. Otherwise only the time on the card is known (by_clock).
 */
static uint64_t at_most(const struct batch *batch, uint64_t ns, bool by_clock) {
    if (by_clock) return ns;
    return smaller(batch->varies ? batch->likely : batch->cost, ns + ns / EVENS_OUT);
}

uint16_t context_meter_overlap(const struct meter *meter) {
    return meter->overlap ? (uint16_t)meter->overlap : ONCE;
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
                   uint64_t since, uint64_t now) {
    uint64_t began = gpu_events_at(&meter->events, batch->begin);
    struct done done = {.from = larger(began, batch->launched_at), .reserved = batch->reserved,
                        .fresh = batch->fresh};
    done.to = larger(batch->ended_at, done.from);
    done.since = smaller(since, done.from);
    uint64_t ns = done.to - done.from;
    struct terms terms = {0};
    budget_terms(regions, meter->card, now, &terms);
    if (!batch->fresh) terms.since = 0; /* its cost is known, even if neighbours shared the card */
    enum bucket_whose whose = bucket_whose(&terms, done.from, done.to);
    bool contested = whose == BUCKET_CONTESTED;
    uint64_t own = bucket_own_part(&terms, done.from, done.to);
    bool surprise = is_surprise(batch, own, contested ? bucket_contest(&terms) : 0);
    bool sparse = is_sparse(meter, batch), gaps = sparse || (!batch->work && leaves_gaps(meter));
    done.most = at_most(batch, ns, (surprise || (batch->varies && !contested)) && !gaps);
    uint64_t took = budget_settle(regions, meter->card, &terms, now, &done);
    utilization_note(regions, meter->card, now);
    if (batch->work)
        costs_learn(batch->work, batch->shape, done.passed,
                    (whose == BUCKET_OWN || surprise) && !batch->sparse);
    else
        learn_gaps(meter, sparse, surprise);
    if (!batch->fresh) learn_overlap(meter, batch->likely, took);
}

/* If the events could not be read, the batch stays charged as it was reserved. */
static void settle(struct regions *regions, struct meter *meter, const struct batch *batch,
                   uint64_t since, uint64_t now) {
    if (gpu_events_at(&meter->events, batch->begin) && gpu_events_at(&meter->events, batch->end))
        charge(regions, meter, batch, since, now);
    meter->moved_at = larger(meter->moved_at, batch->ended_at);
    gpu_events_drop(&meter->events, batch->begin);
    gpu_events_drop(&meter->events, batch->end);
    meter->queue -= smaller(batch->likely, meter->queue);
    meter->doubtful -= batch->doubtful;
}

static void look(struct meter *meter, struct batch *batch, uint64_t now) {
    enum gpu_event_state state = gpu_events_look(&meter->events, batch->begin, now);
    if (state == GPU_EVENT_PASSED) state = gpu_events_look(&meter->events, batch->end, now);
    if (state == GPU_EVENT_PASSED) batch->ended_at = gpu_events_at(&meter->events, batch->end);
    if (state == GPU_EVENT_BROKEN) batch->ended_at = now;
}

/* The batch that ended first; NULL if none has ended. */
static struct batch *first_ended(struct meter *meter) {
    struct batch *first = NULL;
    for (struct batch *each = meter->batches; each < meter->batches + meter->count; each++)
        if (each->ended_at && (!first || each->ended_at < first->ended_at)) first = each;
    return first;
}

/* ns of the unsettled batches that the card has begun. */
static uint64_t begun(const struct meter *meter) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < meter->count; i++)
        if (gpu_events_at(&meter->events, meter->batches[i].begin)) sum += meter->batches[i].likely;
    return sum;
}

/*
 * The unsettled work, less what the card must have done of it since it last made progress, with
 * overlap.
 */
uint64_t context_meter_queue(const struct meter *meter, uint64_t now) {
    uint64_t since = now > meter->moved_at ? now - meter->moved_at : 0, overlap = context_meter_overlap(meter);
    uint64_t done = smaller(since * overlap / ONCE, begun(meter));
    return (meter->queue - smaller(done, meter->queue)) * ONCE / overlap;
}

/* The moment since which the card has unsettled work; now if it has none. */
static uint64_t open_since(const struct meter *meter, uint64_t now) {
    if (!meter->count) return now;
    const struct batch *oldest = &meter->batches[0];
    const struct gpu_event *begin = &meter->events.all[oldest->begin];
    return larger(begin->at ? begin->at : begin->recorded_at, oldest->launched_at);
}

/* Work that has begun counts as well: a kernel may wait for another one that is launched later. */
bool context_meter_stuck(const struct meter *meter, uint64_t now) {
    uint64_t since = larger(open_since(meter, now), meter->moved_at);
    return meter->count && since + begun(meter) + STUCK_AFTER < now;
}

static void take_out(struct meter *meter, struct batch *batch) {
    size_t behind = (size_t)(meter->batches + meter->count - (batch + 1));
    memmove(batch, batch + 1, behind * sizeof *batch);
    set_count(meter, meter->count - 1);
}

/*
 * Settles in the order in which batches ended: of work that several streams had on the card at
 * once, each piece is taken to have run since the end of the one before it.
 */
void context_meter_reap(struct regions *regions, struct meter *meter, uint64_t now) {
    uint64_t since = open_since(meter, now);
    for (unsigned i = 0; i < meter->count; i++) look(meter, &meter->batches[i], now);
    for (struct batch *next; (next = first_ended(meter)); take_out(meter, next))
        settle(regions, meter, next, since, now);
    if (!meter->count) meter->moved_at = now;
    context_meter_tell(regions, meter, now);
}

void context_meter_tell(struct regions *regions, struct meter *meter, uint64_t now) {
    bool open = meter->count && (begun(meter) || !context_meter_stuck(meter, now));
    tell_others(regions, meter, open ? open_since(meter, now) : 0, now + context_meter_queue(meter, now),
                now);
}

void context_meter_push(struct meter *meter, struct batch batch) {
    if (!batch.begin || !batch.end || meter->count == BATCHES_MAX) return;
    gpu_events_keep(&meter->events, batch.begin);
    gpu_events_keep(&meter->events, batch.end);
    meter->batches[meter->count] = batch;
    set_count(meter, meter->count + 1);
    meter->queue += batch.likely;
    meter->doubtful += batch.doubtful;
}

