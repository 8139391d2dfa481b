/*
 * Measures the work of one context in batches, each between two events. A batch is settled once a
 * thread finds that the card has passed its events. The caller holds the meter's lock, unless
 * stated otherwise. Moments are ns of CLOCK_MONOTONIC.
 */
#ifndef MIZAR_CONTEXT_METER_H
#define MIZAR_CONTEXT_METER_H

#include "region/regions.h"
#include "time/gpu_events.h"

#define BATCHES_MAX 64
#define ONCE 16u /* unit of overlap: this value means one piece of work at a time */

/* Work between two events. */
struct batch {
    uint16_t begin, end;  /* events */
    bool sparse;          /* the card was waiting for work at the batch's end */
    bool doubtful;        /* the actual cost may be very different */
    bool varies;          /* the cost differs from launch to launch */
    bool fresh;           /* the cost was measured too seldom */
    const void *work;     /* function or graph, if the batch is one launch; else NULL */
    uint64_t shape;       /* of that launch: costs_shape() */
    uint64_t cost;        /* ns, the sum over its launches */
    uint64_t reserved;    /* ns; less than the cost where launches overlap */
    uint64_t likely;      /* ns that it will probably take */
    uint64_t launched_at; /* the batch cannot have begun before */
    uint64_t ended_at;    /* 0: not known to have ended */
};

/* The meter of one context. */
struct meter {
    CUcontext context;  /* NULL: free */
    bool rests;         /* its context may be ending: threads of other contexts must not use it */
    struct meter *next; /* the meter that was made before this one */
    int card;
    uint32_t lock;
    uint32_t count;        /* number of unsettled batches */
    uint32_t doubtful;     /* number of those that are doubtful */
    uint64_t queue;        /* ns that the unsettled batches will probably take */
    uint64_t overlap;      /* pieces of work done at a time, times ONCE; 0: not known */
    uint64_t worked, took; /* recent ns, by costs of launches and by the card's time */
    int sparse;            /* how often recent grants ended while the card waited for work */
    bool suspect;          /* the last grant may have used more than was paid for */
    uint64_t moved_at;     /* when the card last finished work, or had none */
    uint64_t open_since, open_until; /* what was announced to the container's other processes */
    struct batch batches[BATCHES_MAX]; /* oldest first */
    struct gpu_events events;
};

/*
 * Finds the meter of the stream's context, or makes one. There is no limit to their number, since
 * work without a meter would not be limited. Needs no lock. Returns the driver's error, or
 * CUDA_ERROR_OUT_OF_MEMORY if the context's card is unknown or there is no memory for a meter.
 */
CUresult context_meter_of(struct regions *regions, uintptr_t stream, struct meter **meter);

/* The meter of the context; NULL if there is none. Needs no lock. */
struct meter *context_meter_known(struct regions *regions, CUcontext context);

/*
 * The first of all meters of the process, linked by `next`; NULL if there is none. Needs no lock.
 */
struct meter *context_meter_first(struct regions *regions);

/* Frees the meter of a context that has ended. Its batches stay charged as they were reserved. */
void context_meter_clear(struct regions *regions, struct meter *meter);

/* Adds a batch. If it cannot be measured, it is dropped and stays charged as it was reserved. */
void context_meter_push(struct meter *meter, struct batch batch);

/* Announces the work on the card to the container's other processes. */
void context_meter_tell(struct regions *regions, struct meter *meter, uint64_t now);

/* Settles the batches that the card has finished. */
void context_meter_reap(struct regions *regions, struct meter *meter, uint64_t now);

/* ns until the card should have finished the unsettled work. */
uint64_t context_meter_queue(const struct meter *meter, uint64_t now);

/*
 * Whether unsettled work has not progressed for longer than it should: then it may be waiting for
 * work that is launched next.
 */
bool context_meter_stuck(const struct meter *meter, uint64_t now);

/*
 * How much work the card does at a time, in units of ONCE: kernels of several streams may run side
 * by side.
 */
uint16_t context_meter_overlap(const struct meter *meter);

/* Records that work of varying cost was launched. Returns whether some was launched recently. */
void context_meter_note_varying(struct regions *regions, uint64_t now);
bool context_meter_vary(struct regions *regions, uint64_t now);

#endif
