/*
 * What measures the work of one context: batches between two events that the card has not passed,
 * or that were not looked at since. The caller holds the meter's lock, unless it is said.
 */
#ifndef MIZAR_CONTEXT_METER_H
#define MIZAR_CONTEXT_METER_H

#include "region/regions.h"
#include "time/gpu_events.h"

#define BATCHES_MAX 64
#define ONCE 16u /* of overlap: one piece of work at a time */

/* Work between two events. */
struct batch {
    uint16_t begin, end;  /* events */
    bool sparse;          /* at its end, the card had been waiting for work */
    bool doubtful;        /* its cost may turn out to be quite another */
    bool varies;          /* its cost is not always the same */
    bool fresh;           /* it is not well known */
    const void *work;     /* if it is one piece of work: what ... */
    uint64_t shape;       /* ... and over how many threads */
    uint64_t cost;        /* ns, of its launches */
    uint64_t reserved;    /* less, where launches overlap */
    uint64_t likely;      /* what it will probably take of that */
    uint64_t launched_at; /* it cannot have begun before */
    uint64_t ended_at;    /* 0: not as far as is known */
};

/* Of one context. */
struct meter {
    CUcontext context;  /* NULL: free */
    bool rests;         /* its context may be ending: threads of other contexts leave it alone */
    struct meter *next; /* the one made before it */
    int card;
    uint32_t lock;
    uint32_t count;        /* of the batches that are not settled, oldest first */
    uint32_t doubtful;     /* so many of them are */
    uint64_t queue;        /* ns that they will probably take */
    uint64_t overlap;      /* ONCE times the work that is done at a time; 0: not known */
    uint64_t worked, took; /* ns by what launches cost, and of the card's time, of late */
    int sparse;            /* how often the card was waiting at the end of a grant, of late: context_meter.c */
    bool suspect;          /* the last grant may have been more than was paid for: launch_metering.c */
    uint64_t moved_at;     /* when the card last got something done, or had nothing to do */
    uint64_t open_since, open_until; /* what the others of the container were told: context_meter.c */
    struct batch batches[BATCHES_MAX];
    struct gpu_events events;
};

/*
 * The meter of the stream's context, which is made if there is none: as many as there are contexts,
 * since work that nobody measures would not be limited. Needs no lock.
 */
CUresult context_meter_of(struct regions *regions, uintptr_t stream, struct meter **meter);

/* The same if there is one already, or NULL. */
struct meter *context_meter_known(struct regions *regions, CUcontext context);

/* All meters of the process: this one, its next, ... or NULL. */
struct meter *context_meter_first(struct regions *regions);

/* Its events are void, and what they measured stays charged as it was reserved. */
void context_meter_clear(struct regions *regions, struct meter *meter);

/* Adds a batch, unless it cannot be measured: then it stays charged as it was reserved. */
void context_meter_push(struct meter *meter, struct batch batch);

/* Lets the container's other processes know what is on the card. */
void context_meter_tell(struct regions *regions, struct meter *meter, uint64_t now);

/* Settles what the card has done. */
void context_meter_reap(struct regions *regions, struct meter *meter, uint64_t now);

/* ns that the card will be at work, by what launches cost and what it should have done of that. */
uint64_t context_meter_queue(const struct meter *meter, uint64_t now);

/* Nothing has begun or ended for longer than it should: it waits, perhaps for what is launched next. */
bool context_meter_stuck(const struct meter *meter, uint64_t now);

/* Kernels of several streams may run side by side: ONCE times as much as one after the other. */
uint16_t context_meter_overlap(const struct meter *meter);

/* Work of varying costs was launched. */
void context_meter_note_varying(struct regions *regions, uint64_t now);
bool context_meter_vary(struct regions *regions, uint64_t now);

#endif
