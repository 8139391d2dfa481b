#include "time/launch_metering.h"

#include "base/clock.h"
#include "base/numbers.h"
#include "lookup/cards.h"
#include "lookup/resolve.h"
#include "memory/first_use.h"
#include "region/dead_processes.h"
#include "region/enter.h"
#include "time/container_budget.h"
#include "time/context_meter.h"

/* ns: the largest grant where the card's time is limited. */
#define QUANTUM UINT64_C(1000000)
/* ns: the largest grant where nothing limits the container. */
#define QUANTUM_FREE UINT64_C(5000000)
/* ns: a grant covers what the thread will probably launch within this time. */
#define FORESIGHT UINT64_C(4000000)
/* A grant is at most this many times what the thread used of its last one. */
#define GROWS 2
/* Grants are at most this part of a quantum while the meter is suspect. */
#define SUSPECT_PART 4
/* ns: assumed cost of work that was never measured. */
#define UNKNOWN_COST UINT64_C(20000)
/*
 * ns: longest time that work of unknown cost waits for work of doubtful cost, since that may itself
 * be waiting for this work.
 */
#define UNKNOWN_WAIT UINT64_C(200000000)
/* ns: the most that a launch reserves, so that it does not hold up other work for longer. */
#define COST_MOST UINT64_C(50000000)
/* ns: windows are planned for no more than this of work that was measured too seldom. */
#define SURE_MOST UINT64_C(5000000)
/*
 * Batches that a launch may add: its own, and one for each grant that its thread ends before the
 * next launch. A launch waits for room for all of them: work whose batch found no room would stay
 * charged as it was reserved, and its time on the card would be charged again to the work measured
 * next.
 */
#define BATCHES_MORE (1 + STREAM_CREDITS_MAX)
/*
 * ns: how long a waiting launch sleeps before it first checks whether the card has finished work.
 */
#define LOOK_FIRST UINT64_C(30000)
/* ns: the growing interval between two such checks stops growing here. */
#define LOOK_LAST UINT64_C(1000000)
/* ns that a launch pays where nothing is limited. */
#define UNLIMITED_COST 1000
/* ns that are granted where nothing is limited. A new limit takes effect when they are used up. */
#define UNLIMITED_CREDIT 100000

/* Taking the lock waits for a thread that is reading the meter's events. */
static void rest(struct meter *meter, bool rests) {
    lock_take(&meter->lock);
    meter->rests = rests;
    lock_release(&meter->lock);
}

void metering_rest(struct regions *regions, CUcontext context, bool rests) {
    struct meter *meter = context_meter_first(regions);
    for (; meter; meter = meter->next)
        if (!context || __atomic_load_n(&meter->context, __ATOMIC_ACQUIRE) == context)
            rest(meter, rests);
}

void metering_forget(struct regions *regions, CUcontext context) {
    struct meter *meter = context_meter_known(regions, context);
    if (!meter) return;
    lock_take(&meter->lock);
    context_meter_clear(regions, meter);
    lock_release(&meter->lock);
}

/* ---- grants of threads ------------------------------------------------------------------- */

/* Whether the credit's grant is measured by this meter and has not ended. */
static bool is_open(const struct stream_credit *credit, const struct meter *meter) {
    return credit->meter == meter && credit->begin &&
           meter->events.all[credit->begin].serial == credit->begin_serial;
}

/*
 * ns left of the grant. Clamped, since the cost of a launch may have changed between its payment
 * and undo_payment().
 */
static uint64_t left_of(const struct stream_credit *credit) {
    return credit->left > 0 ? smaller((uint64_t)credit->left, credit->granted) : 0;
}

static bool is_unused(const struct stream_credit *credit) {
    return left_of(credit) == credit->granted;
}

/* Ends the grant and refunds what was not used. */
static void give_back(struct regions *regions, struct stream_credit *credit) {
    budget_refund(regions, credit->meter->card, left_of(credit) * ONCE / credit->overlap);
    credit->used += credit->granted - (uint32_t)left_of(credit);
    credit->begin = 0;
    credit->left = 0;
    credit->granted = 0;
}

/*
 * Ends the thread's grant for the stream: adds its used part as a batch up to the event `end`, and
 * refunds the rest.
 */
static void close_credit(struct regions *regions, struct stream_credit *credit, uint16_t end) {
    uint64_t used = credit->granted - left_of(credit), reserved = used * ONCE / credit->overlap;
    struct batch batch = {.begin = credit->begin, .end = end, .launched_at = credit->since,
                          .cost = used, .reserved = reserved, .likely = used,
                          .varies = context_meter_vary(regions, clock_now())};
    if (used) context_meter_push(credit->meter, batch);
    give_back(regions, credit);
}

/*
 * Ends a grant of a stream that may be gone or must not be used: its work is counted by the assumed
 * costs.
 */
static void end_unmeasured(struct regions *regions, struct stream_credit *credit) {
    uint64_t used = credit->granted - left_of(credit);
    budget_count(regions, credit->meter->card, used * ONCE / credit->overlap);
    give_back(regions, credit);
}

static void evict(struct regions *regions, struct stream_credit *credit) {
    if (regions && credit->meter && is_open(credit, credit->meter)) end_unmeasured(regions, credit);
}

/* The stream's own credit, or a free one, or the one that has least left, whose grant ends. */
static struct stream_credit *take_credit(struct regions *regions, uintptr_t name) {
    struct stream_credit *own = stream_credit_find(name), *best = own ? own : &stream_credits.all[0];
    for (uint32_t i = 0; !own && i < STREAM_CREDITS_MAX; i++)
        if (!stream_credits.all[i].name || stream_credits.all[i].left < best->left)
            best = &stream_credits.all[i];
    if (!own) evict(regions, best);
    return best;
}

static uint32_t streams_ended(const struct regions *regions) {
    return regions ? __atomic_load_n(&regions->process->streams_ended, __ATOMIC_ACQUIRE) : 0;
}

static void grant(const struct piece *piece, uint64_t ns, struct meter *meter, uint16_t begin) {
    struct stream_credit *credit = take_credit(piece->regions, piece->name);
    uint16_t overlap = piece->overlap ? piece->overlap : ONCE;
    uint32_t serial = begin ? meter->events.all[begin].serial : 0;
    uint32_t granted = (uint32_t)(ns * overlap / ONCE);
    bool goes_on = !ns && credit->name == piece->name;
    uint64_t used = piece->guess.ns + (goes_on ? credit->used : 0);
    *credit = (struct stream_credit){
        .name = piece->name, .left = granted, .granted = granted, .meter = meter,
        .since = goes_on ? credit->since : piece->launched_at,
        .used = (uint32_t)smaller(used, QUANTUM_FREE),
        .begin_serial = serial, .ended = streams_ended(piece->regions), .begin = begin,
        .overlap = overlap, .probed = !ns};
}

/*
 * Grants time where nothing is limited, to be checked again some launches later. The node agent is
 * told that the container wants time, since the card may be lent while its owner is idle.
 */
static void grant_unlimited(const struct piece *piece) {
    if (piece->meter) budget_want(piece->regions, piece->card, clock_now(), 0);
    costs_mark(piece->work, piece->shape, UNLIMITED_COST);
    grant(piece, UNLIMITED_CREDIT, NULL, 0);
}

/*
 * Whether the stream is being captured. The driver refuses the question for the legacy stream while
 * another stream is captured; the legacy stream must not be used then, so it counts as captured.
 */
static bool is_captured(uintptr_t stream) {
    int status = 0;
    CUresult result = REAL(cuStreamIsCapturing)((CUstream)stream, &status);
    return result == CUDA_SUCCESS ? status : result != CUDA_ERROR_NOT_FOUND;
}

/* ---- a launch -------------------------------------------------------------------------------- */

/*
 * The largest grant (ns). The time of a grant that ends while the card waits for work is not known.
 * If it may have been much more than was paid for, the meter is suspect, and the next grants are
 * small and of random size, so that no program can predict which launches are measured.
 */
static uint64_t quantum_of(const struct meter *meter, const struct terms *terms, uint64_t now) {
    uint64_t quantum = terms_free(terms) ? QUANTUM_FREE : QUANTUM;
    return meter->suspect ? scattered(now, 32) % (quantum / SUSPECT_PART) : quantum;
}

/*
 * ns that the thread will probably launch into the stream within FORESIGHT, extrapolated from its
 * launches since the last grant. So a thread that launches little, or into many streams, withholds
 * little from the others.
 */
static uint64_t likely_use(const struct stream_credit *credit, uint64_t now) {
    if (!credit) return 0;
    uint64_t span = larger(now - credit->since, 1);
    return smaller(GROWS * (uint64_t)credit->used, credit->used * FORESIGHT / span);
}

/*
 * ns of the card's time that the thread's grants for other streams still hold. They are refunded
 * when the thread waits, so it need not wait for them. All grants of a thread together are at most
 * a quantum.
 */
static uint64_t held_by_others(const struct piece *piece) {
    uint64_t held = 0;
    for (const struct stream_credit *credit = stream_credits.all;
         credit < stream_credits.all + STREAM_CREDITS_MAX; credit++)
        if (credit->name != piece->name && is_open(credit, piece->meter))
            held += left_of(credit) * ONCE / credit->overlap;
    return held;
}

/*
 * ns to grant with the launch. A launch directly behind other work on the card is measured exactly;
 * a launch to an idle card is not. So after one launch to an idle card nothing is granted, and the
 * next launch is measured too. The same holds for work that was measured too seldom.
 */
static uint64_t extra_of(const struct piece *piece, const struct terms *terms, uint64_t now,
                         uint64_t held) {
    const struct stream_credit *credit = stream_credit_find(piece->name);
    uint64_t quantum = quantum_of(piece->meter, terms, now);
    bool probe = !piece->meter->count && !(credit && credit->probed);
    if (probe || piece->guess.fresh || piece->guess.ns >= quantum) return 0;
    return smaller(likely_use(credit, now), quantum - smaller(held, quantum));
}

/* ns of the card's time that the launch reserves. */
static uint64_t reserved_for(const struct piece *piece) {
    uint64_t cost = piece->guess.ns < COST_MOST ? piece->guess.ns : COST_MOST;
    return cost * ONCE / piece->overlap;
}

static bool is_full(const struct meter *meter) {
    return meter->count + BATCHES_MORE > BATCHES_MAX;
}

static bool admitted(struct piece *piece, struct terms *terms, uint64_t now, uint64_t *again) {
    struct meter *meter = piece->meter;
    struct ask ask = {.now = now, .cost = reserved_for(piece), .likely = piece->guess.likely,
                      .queue = context_meter_queue(meter, now), .held = held_by_others(piece),
                      .unsure = piece->guess.fresh};
    bool unknown = piece->guess.kind == COSTS_UNKNOWN && meter->doubtful;
    bool late = now - piece->asked_at >= UNKNOWN_WAIT, stuck = late && context_meter_stuck(meter, now);
    if (terms->longest < piece->guess.ns) terms->longest = piece->guess.ns;
    if ((unknown && !late) || (is_full(meter) && !stuck)) return false;
    if (stuck) ask.queue = 0;
    piece->extra = extra_of(piece, terms, now, ask.held);
    return budget_take(piece->regions, piece->card, terms, &ask, &piece->extra, again);
}

static void look_up_cost(struct piece *piece) {
    piece->guess = costs_of(piece->work, piece->shape);
    piece->overlap = context_meter_overlap(piece->meter);
    if (piece->guess.kind == COSTS_UNKNOWN) piece->guess.ns = piece->guess.likely = UNKNOWN_COST;
    if (piece->guess.kind != COSTS_STEADY) context_meter_note_varying(piece->regions, clock_now());
}

/*
 * When to check again. Work that may end sooner than expected is checked soon, and then at growing
 * intervals (*patience).
 */
static uint64_t when_to_look(const struct meter *meter, uint64_t now, uint64_t again,
                             uint64_t *patience) {
    bool soon = meter->doubtful || is_full(meter);
    uint64_t look = now + *patience;
    if (soon && *patience < LOOK_LAST) *patience += *patience / 2;
    return soon && look < again ? look : again;
}

/*
 * The stream with this name; a default stream if it is one of the context `current`: see name_of().
 */
static uintptr_t stream_named(uintptr_t name, CUcontext current) {
    uintptr_t stream = name - (uintptr_t)current;
    return stream <= CU_STREAM_PER_THREAD ? stream : name;
}

/*
 * Whether the stream's handle may be used. Default streams always exist, but those of contexts that
 * are not current have no handle. Another stream may be used if none has ended since the grant; it
 * then exists until the caller releases the meter's lock: see metering_before_end().
 */
static bool may_touch(const struct regions *regions, const struct stream_credit *credit, uintptr_t stream) {
    bool handle = stream <= CU_STREAM_PER_THREAD || stream % sizeof(void *) == 0;
    return handle && credit->ended == streams_ended(regions) && !is_captured(stream);
}

/* Ends the thread's grant for the stream, at the stream's present point. */
static void end_credit(struct regions *regions, struct stream_credit *credit, CUstream stream, uint64_t now) {
    if (is_unused(credit)) {
        give_back(regions, credit);
        return;
    }
    uint16_t end = gpu_events_record(&credit->meter->events, stream, now);
    if (end) close_credit(regions, credit, end);
}

/*
 * Ends the thread's grants for other streams before it waits, or the wait would count as work of
 * these streams. Streams are left out if any has ended, since it might be the same one. An event in
 * the legacy stream makes blocking streams wait for one another, so unless the program itself
 * waits, that stream's work is counted by the assumed costs.
 */
static void close_others(const struct piece *piece, uint64_t now, bool program_waits) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    for (struct stream_credit *credit = stream_credits.all;
         credit < stream_credits.all + STREAM_CREDITS_MAX; credit++) {
        uintptr_t stream = stream_named(credit->name, current);
        if (credit->name == piece->name || !is_open(credit, piece->meter) ||
            !may_touch(piece->regions, credit, stream))
            continue;
        if (stream == CU_STREAM_LEGACY && !program_waits) end_unmeasured(piece->regions, credit);
        else end_credit(piece->regions, credit, (CUstream)stream, now);
    }
}

/*
 * ns of work for which windows are planned. The first measurements of work may include time of
 * other containers, so they count up to SURE_MOST. They are not ignored, since windows would change
 * for all containers once the work is known to be long.
 */
static uint64_t surely(const struct guess *guess) {
    return guess->fresh ? smaller(guess->ns, SURE_MOST) : guess->ns;
}

/*
 * Waits until the launch may start, releasing the lock meanwhile. Returns false if time is no
 * longer limited. *waited: whether it had to wait.
 */
static bool await_turn(struct piece *piece, bool *waited) {
    struct terms terms;
    uint64_t patience = LOOK_FIRST;
    piece->asked_at = clock_now();
    for (*waited = false;; *waited = true) {
        uint32_t wake = budget_wake(piece->regions, piece->card);
        uint64_t now = clock_now(), again = UINT64_MAX;
        if (!budget_terms(piece->regions, piece->card, now, &terms)) return false;
        context_meter_reap(piece->regions, piece->meter, now);
        look_up_cost(piece);
        budget_want(piece->regions, piece->card, now, surely(&piece->guess));
        if (admitted(piece, &terms, now, &again)) return true;
        if (!*waited) close_others(piece, now, false);
        again = when_to_look(piece->meter, now, again, &patience);
        lock_release(&piece->meter->lock);
        budget_wait(piece->regions, piece->card, wake, now, again);
        /* A process that died cannot report the end of its work. */
        dead_processes_settle_sometimes(piece->regions);
        lock_take(&piece->meter->lock);
    }
}

/* Adds the cost of this launch again, which stream_credit_pay() subtracted before it failed. */
static void undo_payment(struct stream_credit *credit, const struct piece *piece) {
    if (credit->left < 0) credit->left += costs_ns(piece->work, piece->shape);
}

/*
 * Ends the thread's grant for the stream. Returns the event at its end, kept as the beginning of
 * the next batch; 0 if there is none.
 */
static uint16_t end_grant(struct piece *piece) {
    struct stream_credit *credit = stream_credit_find(piece->name);
    struct meter *meter = piece->meter;
    uint64_t now = clock_now();
    if (!credit || !is_open(credit, meter)) return 0;
    undo_payment(credit, piece);
    uint16_t end = gpu_events_record(&meter->events, (CUstream)piece->stream, now);
    if (end) close_credit(piece->regions, credit, end);
    return gpu_events_keep(&meter->events, end);
}

/* The caller holds the meter's lock. */
static void begin_measured(struct piece *piece) {
    struct gpu_events *events = &piece->meter->events;
    bool waited;
    uint16_t begin = end_grant(piece);
    bool limited = await_turn(piece, &waited);
    if (!begin || waited) {
        gpu_events_drop(events, begin);
        begin = gpu_events_keep(events, gpu_events_record(events, (CUstream)piece->stream, clock_now()));
    }
    piece->begin = begin;
    if (limited) return;
    gpu_events_drop(events, begin);
    piece->meter = NULL;
}

static bool is_limited(struct piece *piece) {
    struct terms terms;
    return budget_terms(piece->regions, piece->card, clock_now(), &terms);
}

static void run_measured(struct piece *piece, void (*step)(struct piece *piece)) {
    struct meter *meter = piece->meter;
    lock_take(&meter->lock);
    step(piece);
    lock_release(&meter->lock);
}

/*
 * The name of the stream's credit. Each context has default streams of its own, with the same
 * handles. With one card they may share a credit, as the same budget pays for all of them. With
 * several cards, the name must contain the context, so that a launch on another card finds no
 * credit by the handle.
 */
static uintptr_t name_of(const struct piece *piece) {
    bool several = piece->regions && piece->regions->process->card_count > 1;
    CUcontext context = NULL;
    if (!several || piece->stream > CU_STREAM_PER_THREAD) return piece->stream;
    REAL(cuCtxGetCurrent)(&context);
    return (uintptr_t)context + piece->stream;
}

CUresult metering_begin(struct piece *piece, const void *work, uint64_t shape, uintptr_t stream) {
    *piece = (struct piece){.work = work, .shape = shape, .stream = stream};
    CUresult result = shim_enter(&piece->regions);
    if (result == CUDA_SUCCESS) result = first_use_begin(&piece->use, piece->regions, work, stream);
    if (result != CUDA_SUCCESS) return result;
    piece->name = name_of(piece);
    if (piece->name != stream && stream_credit_pay(work, shape, piece->name)) return CUDA_SUCCESS;
    if (piece->regions && is_captured(stream)) return CUDA_SUCCESS;
    if (piece->regions) stream_credit_watch(&piece->regions->limits->asleep);
    if (piece->regions) result = context_meter_of(piece->regions, stream, &piece->meter);
    if (result != CUDA_SUCCESS) return first_use_end(&piece->use, result);
    if (piece->meter) piece->card = piece->meter->card;
    if (piece->meter && is_limited(piece)) {
        run_measured(piece, begin_measured);
        piece->launched_at = clock_now();
    } else {
        grant_unlimited(piece);
        piece->meter = NULL;
    }
    return CUDA_SUCCESS;
}

/* Whether the work may take much less or much more time than the guess says. */
static bool is_doubtful(const struct guess *guess) {
    return guess->fresh || guess->kind == COSTS_UNKNOWN || guess->kind == COSTS_WILD;
}

static void end_measured(struct piece *piece) {
    struct meter *meter = piece->meter;
    uint64_t now = clock_now();
    uint16_t end = gpu_events_record(&meter->events, (CUstream)piece->stream, now);
    bool over = end && gpu_events_look(&meter->events, end, now) != GPU_EVENT_AHEAD;
    context_meter_push(meter, (struct batch){.begin = piece->begin, .end = end, .sparse = over,
                                             .launched_at = piece->launched_at,
                                             .doubtful = is_doubtful(&piece->guess),
                                             .varies = context_meter_vary(piece->regions, now),
                                             .fresh = piece->guess.fresh, .work = piece->work, .shape = piece->shape,
                                             .cost = piece->guess.ns, .reserved = reserved_for(piece),
                                             .likely = piece->guess.likely});
    context_meter_tell(piece->regions, meter, now);
    gpu_events_drop(&meter->events, piece->begin);
    grant(piece, piece->extra, meter, end);
}

static void end_failed(struct piece *piece) {
    gpu_events_drop(&piece->meter->events, piece->begin);
    budget_refund(piece->regions, piece->card, reserved_for(piece) + piece->extra);
}

/* ---- threads that end ------------------------------------------------------------------------ */

/*
 * Ends the grants of a thread that ends. The driver may have released its state of the thread
 * already, so it is not called, and work is counted by the assumed costs. If the thread launches
 * even later, as its other destructors may, it is watched again.
 */
static void end_thread(void *unused) {
    struct regions *regions = shim_known();
    (void)unused;
    stream_credits.watched = false;
    for (struct stream_credit *credit = stream_credits.all;
         regions && credit < stream_credits.all + STREAM_CREDITS_MAX; credit++) {
        if (!credit->meter || !lock_patiently(&credit->meter->lock)) continue;
        evict(regions, credit);
        lock_release(&credit->meter->lock);
    }
}

/*
 * Registers end_thread() by libc's function for destructors of C++ thread_local variables. With a
 * libc too old to have it, grants of threads that end are not refunded.
 */
static void watch_thread(void) {
    if (stream_credits.watched) return;
    stream_credits.watched = true;
    resolve_libc()->at_thread_exit(end_thread, NULL, (void *)&end_thread);
}

CUresult metering_end(struct piece *piece, CUresult result) {
    if (piece->meter) run_measured(piece, result == CUDA_SUCCESS ? end_measured : end_failed);
    watch_thread();
    return first_use_end(&piece->use, result);
}

/* ---- waits ----------------------------------------------------------------------------------- */

static void end_waiting(struct piece *piece) {
    struct stream_credit *credit = stream_credit_find(piece->name);
    if (!credit || !is_open(credit, piece->meter)) return;
    end_credit(piece->regions, credit, (CUstream)piece->stream, clock_now());
}

/*
 * Runs the step with the meter locked, if the thread has a grant for the stream and the stream is
 * not captured.
 */
static void with_grant(struct piece *piece, const struct stream_credit *credit, void (*step)(struct piece *)) {
    if (!credit || !credit->begin || is_captured(piece->stream)) return;
    context_meter_of(piece->regions, piece->stream, &piece->meter);
    if (!piece->meter || piece->meter != credit->meter) return;
    piece->card = piece->meter->card;
    run_measured(piece, step);
}

/* Waits for a thread that is using the stream's handle: it holds the meter's lock meanwhile. */
static void await_touch(struct meter *meter) {
    lock_take(&meter->lock);
    lock_release(&meter->lock);
}

void metering_before_end(CUstream stream) {
    struct regions *regions = shim_known();
    metering_before_wait((uintptr_t)stream);
    if (!regions) return;
    __atomic_fetch_add(&regions->process->streams_ended, 1, __ATOMIC_RELEASE);
    struct meter *meter = context_meter_known(regions, cards_context(stream));
    if (meter) await_touch(meter);
}

void metering_before_wait(uintptr_t stream) {
    struct piece piece = {.regions = shim_known(), .stream = stream};
    if (!piece.regions) return;
    piece.name = name_of(&piece);
    struct stream_credit *credit = stream_credit_find(piece.name);
    if (credit && !credit->meter) credit->left = 0; /* the next launch checks for a new limit */
    with_grant(&piece, credit, end_waiting);
}

static void end_all(struct piece *piece) {
    close_others(piece, clock_now(), true);
}

/* Ends the thread's grants for all streams of the current context. */
void metering_before_wait_for_all(void) {
    struct piece piece = {.regions = shim_known()};
    if (!piece.regions || !stream_credit_granted()) return;
    context_meter_of(piece.regions, CU_STREAM_LEGACY, &piece.meter);
    if (piece.meter) run_measured(&piece, end_all);
}

void metering_before_wait_in(CUcontext context) {
    if (!stream_credit_granted()) return;
    bool entered = cards_enter(context);
    if (entered || !context) metering_before_wait_for_all();
    if (entered) cards_leave();
}

/* ---- stalls ---------------------------------------------------------------------------------- */

/*
 * Ends the grant unless the meter is stuck: the stall may wait for a launch that is itself waiting,
 * to which no batch must be added.
 */
static void end_before_stall(struct piece *piece) {
    if (!context_meter_stuck(piece->meter, clock_now())) end_waiting(piece);
}

static void stall_one(struct regions *regions, uintptr_t stream, void (*step)(struct piece *)) {
    struct piece piece = {.regions = regions, .stream = stream};
    piece.name = name_of(&piece);
    with_grant(&piece, stream_credit_find(piece.name), step);
}

/* Ends the grant without an event, which would make the program's streams wait for one another. */
static void leave_unmeasured(struct piece *piece) {
    struct stream_credit *credit = stream_credit_find(piece->name);
    if (credit && is_open(credit, piece->meter)) end_unmeasured(piece->regions, credit);
}

static bool waits_for_legacy(uintptr_t stream) {
    unsigned flags = 0;
    CUresult result = REAL(cuStreamGetFlags)((CUstream)stream, &flags);
    return result == CUDA_SUCCESS && !(flags & CU_STREAM_NON_BLOCKING);
}

/* Ends the grant for the legacy stream of the stream's context. */
static void stall_legacy(struct regions *regions, uintptr_t stream) {
    if (!cards_enter(cards_context((CUstream)stream))) return;
    stall_one(regions, CU_STREAM_LEGACY, leave_unmeasured);
    cards_leave();
}

/* The legacy stream waits for blocking streams, and they for it, so their grants end together. */
void metering_before_stall(uintptr_t stream) {
    struct regions *regions = stream_credit_granted() ? shim_known() : NULL;
    if (!regions) return;
    stall_one(regions, stream, end_before_stall);
    if (!stream_credit_granted()) return;
    if (stream == CU_STREAM_LEGACY) metering_before_wait_for_all();
    else if (waits_for_legacy(stream)) stall_legacy(regions, stream);
}

/* Does nothing while another thread holds the lock, since that thread reaps the meter. */
static void reap_meter(struct regions *regions, struct meter *meter) {
    if (!__atomic_load_n(&meter->count, __ATOMIC_RELAXED) || !lock_try(&meter->lock)) return;
    if (!meter->rests) context_meter_reap(regions, meter, clock_now());
    lock_release(&meter->lock);
}

void metering_after_wait(void) {
    struct regions *regions = shim_known();
    struct meter *meter = regions ? context_meter_first(regions) : NULL;
    for (; meter; meter = meter->next) reap_meter(regions, meter);
}
