#include "time/meter.h"

#include "base/numbers.h"
#include "lookup/cards.h"
#include "lookup/resolve.h"
#include "memory/charge.h"
#include "region/slots.h"
#include "time/budget.h"
#include "time/meters.h"

#define QUANTUM UINT64_C(1000000)        /* ns granted at once ... */
#define QUANTUM_FREE UINT64_C(5000000)   /* ... and where nothing is limited */
#define FORESIGHT UINT64_C(4000000)      /* ns, for which a thread is granted what it will use ... */
#define GROWS 2                          /* ... so many times as much as before, at most */
#define SUSPECT_PART 4
#define UNKNOWN_COST UINT64_C(20000)     /* ns, of work that was never measured ... */
#define UNKNOWN_WAIT UINT64_C(200000000) /* ... and how long it waits for other such work: it may be
                                            what that waits for */
#define COST_MOST UINT64_C(50000000)     /* ns reserved ahead: for the same reason */
#define SURE_MOST UINT64_C(5000000)      /* ns, which work may claim that was hardly measured */
#define LOOK_FIRST UINT64_C(30000)       /* ns, to see whether the card has gone on ... */
#define LOOK_LAST UINT64_C(1000000)      /* ... and at longest */
#define UNLIMITED_COST 1000              /* what a launch pays where nothing is limited ... */
#define UNLIMITED_CREDIT 100000          /* ... so that a new limit is noticed */

THREADS_OWN struct lanes lanes;

/* Who is just looking at it goes on first. */
static void rest(struct meter *meter, bool rests) {
    process_lock(&meter->lock);
    meter->rests = rests;
    process_unlock(&meter->lock);
}

void meter_rest(struct regions *regions, CUcontext context, bool rests) {
    struct meter *meter = meters_first(regions);
    for (; meter; meter = meter->next)
        if (!context || __atomic_load_n(&meter->context, __ATOMIC_ACQUIRE) == context)
            rest(meter, rests);
}

void meter_forget(struct regions *regions, CUcontext context) {
    struct meter *meter = meters_known(regions, context);
    if (!meter) return;
    process_lock(&meter->lock);
    meters_clear(regions, meter);
    process_unlock(&meter->lock);
}

/* ---- what threads were granted ------------------------------------------------------------------- */

/* Is the lane's grant measured by this meter, and still to be ended? */
static bool is_open(const struct lane *lane, const struct meter *meter) {
    return lane->meter == meter && lane->begin &&
           meter->stamps.all[lane->begin].serial == lane->begin_serial;
}

/* What a launch costs may have changed between its payment and its undoing. */
static uint64_t left_of(const struct lane *lane) {
    return lane->credit > 0 ? smaller((uint64_t)lane->credit, lane->granted) : 0;
}

static bool is_unused(const struct lane *lane) {
    return left_of(lane) == lane->granted;
}

/* Nothing is granted any more; what was not used goes back. */
static void give_back(struct regions *regions, struct lane *lane) {
    budget_refund(regions, lane->meter->card, left_of(lane) * ONCE / lane->overlap);
    lane->used += lane->granted - (uint32_t)left_of(lane);
    lane->begin = 0;
    lane->credit = 0;
    lane->granted = 0;
}

/* What the thread was granted for the stream is measured up to `end`; the rest is given back. */
static void close_lane(struct regions *regions, struct lane *lane, uint16_t end) {
    uint64_t used = lane->granted - left_of(lane), reserved = used * ONCE / lane->overlap;
    struct batch batch = {.begin = lane->begin, .end = end, .launched_at = lane->since,
                          .cost = used, .reserved = reserved, .likely = used, .varies = meters_vary(regions, budget_now())};
    if (used) meters_push(lane->meter, batch);
    give_back(regions, lane);
}

/* The stream may be gone, or nothing may touch it: its work is taken for what it cost. */
static void end_unmeasured(struct regions *regions, struct lane *lane) {
    uint64_t used = lane->granted - left_of(lane);
    budget_count(regions, lane->meter->card, used * ONCE / lane->overlap);
    give_back(regions, lane);
}

static void evict(struct regions *regions, struct lane *lane) {
    if (regions && lane->meter && is_open(lane, lane->meter)) end_unmeasured(regions, lane);
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
    struct lane *lane = take_lane(piece->regions, piece->name);
    uint16_t overlap = piece->overlap ? piece->overlap : ONCE;
    uint32_t serial = begin ? meter->stamps.all[begin].serial : 0;
    uint32_t credit = (uint32_t)(ns * overlap / ONCE);
    bool goes_on = !ns && lane->name == piece->name;
    uint64_t used = piece->guess.ns + (goes_on ? lane->used : 0);
    *lane = (struct lane){
        .name = piece->name, .credit = credit, .granted = credit, .meter = meter,
        .since = goes_on ? lane->since : piece->launched_at,
        .used = (uint32_t)smaller(used, QUANTUM_FREE),
        .begin_serial = serial, .ended = streams_ended(piece->regions), .begin = begin,
        .overlap = overlap, .probed = !ns};
}

/* Nothing is limited here: but look again some launches later. */
static void grant_unlimited(const struct piece *piece) {
    costs_mark(piece->work, piece->shape, UNLIMITED_COST);
    grant(piece, UNLIMITED_CREDIT, NULL, 0);
}

/* Of the legacy stream that cannot be asked while another one is captured: nothing may touch it. */
static bool is_captured(uintptr_t stream) {
    int status = 0;
    CUresult result = REAL(cuStreamIsCapturing)((CUstream)stream, &status);
    return result == CUDA_SUCCESS ? status : result != CUDA_ERROR_NOT_FOUND;
}

/* ---- a launch ------------------------------------------------------------------------------------ */

/*
 * What a grant ended on a waiting card took is not known. If it may be much more than was paid for, the
 * next ones are small, and chance says how small: so no program knows which launches are measured.
 */
static uint64_t quantum_of(const struct meter *meter, const struct terms *terms, uint64_t now) {
    uint64_t quantum = terms_free(terms) ? QUANTUM_FREE : QUANTUM;
    return meter->suspect ? scattered(now, 32) % (quantum / SUSPECT_PART) : quantum;
}

/*
 * What the thread will probably launch into the stream within a moment, by what it has launched since it
 * asked last. So threads that launch little, and each of many streams, keep little from the others.
 */
static uint64_t likely_use(const struct lane *lane, uint64_t now) {
    if (!lane) return 0;
    uint64_t span = larger(now - lane->since, 1);
    return smaller(GROWS * (uint64_t)lane->used, lane->used * FORESIGHT / span);
}

/*
 * ns of the card's time that the thread still has for other streams: they go back when it waits, so they
 * are nothing to wait for. All that a thread has is no more than a quantum.
 */
static uint64_t held_by_others(const struct piece *piece) {
    uint64_t held = 0;
    for (const struct lane *lane = lanes.all; lane < lanes.all + LANES_MAX; lane++)
        if (lane->name != piece->name && is_open(lane, piece->meter))
            held += left_of(lane) * ONCE / lane->overlap;
    return held;
}

/*
 * What comes right after work that is on the card is measured exactly; what comes to an idle card
 * isn't. So after the latter nothing is granted, once: the next launch is measured as well. And
 * so is what was measured a few times only.
 */
static uint64_t extra_of(const struct piece *piece, const struct terms *terms, uint64_t now,
                         uint64_t held) {
    const struct lane *lane = lanes_find(piece->name);
    uint64_t quantum = quantum_of(piece->meter, terms, now);
    bool probe = !piece->meter->count && !(lane && lane->probed);
    if (probe || piece->guess.fresh || piece->guess.ns >= quantum) return 0;
    return smaller(likely_use(lane, now), quantum - smaller(held, quantum));
}

/* ns of the card's time. */
static uint64_t reserved_for(const struct piece *piece) {
    uint64_t cost = piece->guess.ns < COST_MOST ? piece->guess.ns : COST_MOST;
    return cost * ONCE / piece->overlap;
}

static bool admitted(struct piece *piece, struct terms *terms, uint64_t now, uint64_t *again) {
    struct meter *meter = piece->meter;
    struct ask ask = {.now = now, .cost = reserved_for(piece), .likely = piece->guess.likely,
                      .queue = meters_queue(meter, now), .held = held_by_others(piece),
                      .unsure = piece->guess.fresh};
    bool unknown = piece->guess.kind == COSTS_UNKNOWN && meter->doubtful;
    bool late = now - piece->asked_at >= UNKNOWN_WAIT, stuck = late && meters_stuck(meter, now);
    if (terms->longest < piece->guess.ns) terms->longest = piece->guess.ns;
    if ((unknown && !late) || (meter->count >= BATCHES_MAX - 2 && !stuck)) return false;
    if (stuck) ask.queue = 0;
    piece->extra = extra_of(piece, terms, now, ask.held);
    return budget_take(piece->regions, piece->card, terms, &ask, &piece->extra, again);
}

static void look_up_cost(struct piece *piece) {
    piece->guess = costs_of(piece->work, piece->shape);
    piece->overlap = meters_overlap(piece->meter);
    if (piece->guess.kind == COSTS_UNKNOWN) piece->guess.ns = piece->guess.likely = UNKNOWN_COST;
    if (piece->guess.kind != COSTS_STEADY) meters_note_varying(piece->regions, budget_now());
}

/* Work that may be over sooner than was said is looked at soon, and then less and less often. */
static uint64_t when_to_look(const struct meter *meter, uint64_t now, uint64_t again,
                             uint64_t *patience) {
    bool soon = meter->doubtful || meter->count >= BATCHES_MAX - 2;
    uint64_t look = now + *patience;
    if (soon && *patience < LOOK_LAST) *patience += *patience / 2;
    return soon && look < again ? look : again;
}

/* The stream that has the name; one of the default streams of `current`: see lane_name(). */
static uintptr_t stream_named(uintptr_t name, CUcontext current) {
    uintptr_t stream = name - (uintptr_t)current;
    return stream <= CU_STREAM_PER_THREAD ? stream : name;
}

/*
 * Default streams always are there; those of contexts that are not current have no handles. One that
 * has not ended stays until the caller lets the meter go: see meter_before_end().
 */
static bool may_touch(const struct regions *regions, const struct lane *lane, uintptr_t stream) {
    bool handle = stream <= CU_STREAM_PER_THREAD || stream % sizeof(void *) == 0;
    return handle && lane->ended == streams_ended(regions) && !is_captured(stream);
}

/* Ends what the thread was granted for the stream, at this point of it. */
static void end_lane(struct regions *regions, struct lane *lane, CUstream stream, uint64_t now) {
    if (is_unused(lane)) {
        give_back(regions, lane);
        return;
    }
    uint16_t end = stamps_record(&lane->meter->stamps, stream, now);
    if (end) close_lane(regions, lane, end);
}

/*
 * The thread will wait: what it launched to other streams is measured up to now, or the wait would
 * be taken for work of theirs. Unless some stream has ended, since it might be one of them. An event
 * in the legacy stream makes blocking streams wait for one another: where the program does not
 * wait itself, that stream's work is taken for what it cost.
 */
static void close_others(const struct piece *piece, uint64_t now, bool program_waits) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    for (struct lane *lane = lanes.all; lane < lanes.all + LANES_MAX; lane++) {
        uintptr_t stream = stream_named(lane->name, current);
        if (lane->name == piece->name || !is_open(lane, piece->meter) ||
            !may_touch(piece->regions, lane, stream))
            continue;
        if (stream == CU_STREAM_LEGACY && !program_waits) end_unmeasured(piece->regions, lane);
        else end_lane(piece->regions, lane, (CUstream)stream, now);
    }
}

/*
 * What windows are made for. The first times of work may be those of all who had the card; but if others
 * learned only after some of them that it is long, they would all have other windows then.
 */
static uint64_t surely(const struct guess *guess) {
    return guess->fresh ? smaller(guess->ns, SURE_MOST) : guess->ns;
}

/* Waits for the launch's turn. False: there is no limit any more. Lets the lock go meanwhile. */
static bool await_turn(struct piece *piece, bool *waited) {
    struct terms terms;
    uint64_t patience = LOOK_FIRST;
    piece->asked_at = budget_now();
    for (*waited = false;; *waited = true) {
        uint32_t wake = budget_wake(piece->regions, piece->card);
        uint64_t now = budget_now(), again = UINT64_MAX;
        if (!budget_terms(piece->regions, piece->card, now, &terms)) return false;
        meters_reap(piece->regions, piece->meter, now);
        look_up_cost(piece);
        budget_want(piece->regions, piece->card, now, surely(&piece->guess));
        if (admitted(piece, &terms, now, &again)) return true;
        if (!*waited) close_others(piece, now, false);
        again = when_to_look(piece->meter, now, again, &patience);
        process_unlock(&piece->meter->lock);
        budget_wait(piece->regions, piece->card, wake, now, again);
        slots_settle_sometimes(piece->regions); /* who died never says that his work is done */
        process_lock(&piece->meter->lock);
    }
}

/* The launch that did not get through was subtracted already. */
static void undo_payment(struct lane *lane, const struct piece *piece) {
    if (lane->credit < 0) lane->credit += costs_ns(piece->work, piece->shape);
}

/* Ends what the thread had; returns the stamp of the end, which is also the next beginning. */
static uint16_t end_grant(struct piece *piece) {
    struct lane *lane = lanes_find(piece->name);
    struct meter *meter = piece->meter;
    uint64_t now = budget_now();
    if (!lane || !is_open(lane, meter)) return 0;
    undo_payment(lane, piece);
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
    process_lock(&meter->lock);
    step(piece);
    process_unlock(&meter->lock);
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

CUresult meter_begin(struct piece *piece, const void *work, uint64_t shape, uintptr_t stream) {
    *piece = (struct piece){.work = work, .shape = shape, .stream = stream};
    CUresult result = shim_enter(&piece->regions);
    if (result == CUDA_SUCCESS) result = uses_begin(&piece->use, piece->regions, work, stream);
    if (result != CUDA_SUCCESS) return result;
    piece->name = lane_name(piece);
    if (piece->name != stream && lanes_pay(work, shape, piece->name)) return CUDA_SUCCESS;
    if (piece->regions && is_captured(stream)) return CUDA_SUCCESS;
    if (piece->regions) result = meters_of(piece->regions, stream, &piece->meter);
    if (result != CUDA_SUCCESS) return uses_end(&piece->use, result);
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

/* It may be over much sooner, or later, than is said. */
static bool is_doubtful(const struct guess *guess) {
    return guess->fresh || guess->kind == COSTS_UNKNOWN || guess->kind == COSTS_WILD;
}

static void end_measured(struct piece *piece) {
    struct meter *meter = piece->meter;
    uint64_t now = budget_now();
    uint16_t end = stamps_record(&meter->stamps, (CUstream)piece->stream, now);
    bool over = end && stamps_look(&meter->stamps, end, now) != STAMP_AHEAD;
    meters_push(meter, (struct batch){.begin = piece->begin, .end = end, .sparse = over,
                               .launched_at = piece->launched_at,
                               .doubtful = is_doubtful(&piece->guess),
                               .varies = meters_vary(piece->regions, now),
                               .fresh = piece->guess.fresh, .work = piece->work, .shape = piece->shape,
                               .cost = piece->guess.ns, .reserved = reserved_for(piece),
                               .likely = piece->guess.likely});
    meters_tell(piece->regions, meter, now);
    stamps_drop(&meter->stamps, piece->begin);
    grant(piece, piece->extra, meter, end);
}

static void end_failed(struct piece *piece) {
    stamps_drop(&piece->meter->stamps, piece->begin);
    budget_refund(piece->regions, piece->card, reserved_for(piece) + piece->extra);
}

/* ---- threads that end ---------------------------------------------------------------------------- */

/*
 * The driver may have left the thread already, so nobody asks it: work is taken for what it cost. Whoever
 * launches even later, as the thread's other destructors may, is watched anew.
 */
static void end_thread(void *unused) {
    struct regions *regions = shim_known();
    (void)unused;
    lanes.watched = false;
    for (struct lane *lane = lanes.all; regions && lane < lanes.all + LANES_MAX; lane++) {
        if (!lane->meter || !process_lock_patiently(&lane->meter->lock)) continue;
        evict(regions, lane);
        process_unlock(&lane->meter->lock);
    }
}

/* By what C++ has for its threads' own variables. A libc that is too old for that keeps the grants. */
static void watch_thread(void) {
    if (lanes.watched) return;
    lanes.watched = true;
    resolve_libc()->at_thread_exit(end_thread, NULL, (void *)&end_thread);
}

CUresult meter_end(struct piece *piece, CUresult result) {
    if (piece->meter) run_measured(piece, result == CUDA_SUCCESS ? end_measured : end_failed);
    watch_thread();
    return uses_end(&piece->use, result);
}

/* ---- waits --------------------------------------------------------------------------------------- */

static void end_waiting(struct piece *piece) {
    struct lane *lane = lanes_find(piece->name);
    if (!lane || !is_open(lane, piece->meter)) return;
    end_lane(piece->regions, lane, (CUstream)piece->stream, budget_now());
}

/* Does the step for the stream's grant, if the thread has one and the stream may be touched. */
static void with_grant(struct piece *piece, const struct lane *lane, void (*step)(struct piece *)) {
    if (!lane || !lane->begin || is_captured(piece->stream)) return;
    meters_of(piece->regions, piece->stream, &piece->meter);
    if (!piece->meter || piece->meter != lane->meter) return;
    piece->card = piece->meter->card;
    run_measured(piece, step);
}

/* Who was just touching it, because it had not ended yet, is done with it when he lets the meter go. */
static void await_touch(struct meter *meter) {
    process_lock(&meter->lock);
    process_unlock(&meter->lock);
}

void meter_before_end(CUstream stream) {
    struct regions *regions = shim_known();
    meter_before_wait((uintptr_t)stream);
    if (!regions) return;
    __atomic_fetch_add(&regions->process->streams_ended, 1, __ATOMIC_RELEASE);
    struct meter *meter = meters_known(regions, cards_context(stream));
    if (meter) await_touch(meter);
}

void meter_before_wait(uintptr_t stream) {
    struct piece piece = {.regions = shim_known(), .stream = stream};
    if (!piece.regions) return;
    piece.name = lane_name(&piece);
    struct lane *lane = lanes_find(piece.name);
    if (lane && !lane->meter) lane->credit = 0; /* has a limit come? */
    with_grant(&piece, lane, end_waiting);
}

static void end_all(struct piece *piece) {
    close_others(piece, budget_now(), true);
}

/* The thread waits for it knows what: nothing stays granted for any stream of its context. */
void meter_before_wait_for_all(void) {
    struct piece piece = {.regions = shim_known()};
    if (!piece.regions || !lanes_granted()) return;
    meters_of(piece.regions, CU_STREAM_LEGACY, &piece.meter);
    if (piece.meter) run_measured(&piece, end_all);
}

void meter_before_wait_in(CUcontext context) {
    if (!lanes_granted()) return;
    bool entered = cards_enter(context);
    if (entered || !context) meter_before_wait_for_all();
    if (entered) cards_leave();
}

/* ---- stalls -------------------------------------------------------------------------------------- */

/* Who waits for long behind a stall may be what it waits for: then he is not kept by more batches. */
static void end_before_stall(struct piece *piece) {
    if (!meters_stuck(piece->meter, budget_now())) end_waiting(piece);
}

static void stall_one(struct regions *regions, uintptr_t stream, void (*step)(struct piece *)) {
    struct piece piece = {.regions = regions, .stream = stream};
    piece.name = lane_name(&piece);
    with_grant(&piece, lanes_find(piece.name), step);
}

/* Without an event, which would make the program's streams wait for one another. */
static void leave_unmeasured(struct piece *piece) {
    struct lane *lane = lanes_find(piece->name);
    if (lane && is_open(lane, piece->meter)) end_unmeasured(piece->regions, lane);
}

static bool waits_for_legacy(uintptr_t stream) {
    unsigned flags = 0;
    CUresult result = REAL(cuStreamGetFlags)((CUstream)stream, &flags);
    return result == CUDA_SUCCESS && !(flags & CU_STREAM_NON_BLOCKING);
}

/* The one of the stream's own context. */
static void stall_legacy(struct regions *regions, uintptr_t stream) {
    if (!cards_enter(cards_context((CUstream)stream))) return;
    stall_one(regions, CU_STREAM_LEGACY, leave_unmeasured);
    cards_leave();
}

/* What one stream does, the legacy stream waits for, and the other way round. */
void meter_before_stall(uintptr_t stream) {
    struct regions *regions = lanes_granted() ? shim_known() : NULL;
    if (!regions) return;
    stall_one(regions, stream, end_before_stall);
    if (!lanes_granted()) return;
    if (stream == CU_STREAM_LEGACY) meter_before_wait_for_all();
    else if (waits_for_legacy(stream)) stall_legacy(regions, stream);
}

/* Whoever finds another thread at it leaves it to that one. */
static void reap_meter(struct regions *regions, struct meter *meter) {
    if (!__atomic_load_n(&meter->count, __ATOMIC_RELAXED) || !process_try_lock(&meter->lock)) return;
    if (!meter->rests) meters_reap(regions, meter, budget_now());
    process_unlock(&meter->lock);
}

void meter_after_wait(void) {
    struct regions *regions = shim_known();
    struct meter *meter = regions ? meters_first(regions) : NULL;
    for (; meter; meter = meter->next) reap_meter(regions, meter);
}
