/* Streams: queues of work that runs in order. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "context.h"
#include "work.h"

/* The end of a stream's last piece of work: a time, or an amount of work on its lane. */
struct moment {
    bool is_work;
    uint64_t at;
};

struct queued {
    struct work work;
    uint64_t asked_at;
    struct queued *next;
};

enum { STREAM_LEGACY, STREAM_PER_THREAD, STREAM_BLOCKING, STREAM_FREE_RUNNING };

struct CUstream_st {
    uint32_t magic;
    int kind;
    CUcontext context;
    struct lane *lane;
    unsigned flags;
    int priority;
    uint64_t id;
    struct moment tail;         /* the end of the work that was handed to the card or the copy
                                   engines */
    uint64_t waited_until;      /* time of the last event that it has waited for */
    struct queued *head, **end; /* work that cannot be handed on yet */
    uint64_t length;            /* number of pieces in that queue */
    struct mark *settling;      /* of the tail, while its time is being determined */
    bool calling;               /* the worker is running a host function of this stream */
    bool dying;                 /* destroyed; ends when its work is done */
    struct frontier *capture;   /* position in the graph that is being captured, or NULL */
    CUstream next, *link;       /* in the list of all streams */
};

/* Sets *stream to the stream of the current context behind a handle, including 0, 1 and 2. */
CUresult stream_get(CUstream handle, CUstream *stream);
/* Appends work, after the work that the rules of default streams put before it. If the stream is
 * being captured, adds a node instead. Takes engine_lock. */
CUresult stream_add(CUstream stream, struct work work);
/* For several pieces of work in a row: stream_enter() takes engine_lock and applies those rules;
 * stream_leave() releases it. */
CUresult stream_enter(CUstream stream);
void stream_leave(void);
/* Appends work without these rules and without capture. The caller holds engine_lock. */
void stream_append(CUstream stream, struct work work);
/* Returns a mark of the stream's present end, which the caller must drop. The caller holds
 * engine_lock. */
struct mark *stream_mark(CUstream stream);
/* Makes `stream` wait for all present work of `other`. The caller holds engine_lock. */
void stream_join(CUstream stream, CUstream other);
/* Whether all work is done. The caller holds engine_lock. */
bool stream_idle(CUstream stream);
/* Makes a stream of the driver's own, for branches of graphs. The caller holds engine_lock. */
CUstream stream_new(CUcontext context, int kind);
void stream_end(CUstream stream);
/* For a destroyed stream: lets it end when its work is done. */
void stream_retire(CUstream stream);

/* Hands on all work that is ready. Returns when to try again. The caller holds engine_lock. */
uint64_t engine_push(bool may_call);
/* Waits until the mark is reached. Takes engine_lock. */
CUresult engine_wait(CUcontext context, struct mark *mark);
CUresult engine_wait_and_drop(CUcontext context, struct mark *mark);
CUresult engine_wait_stream(CUstream stream);
CUresult engine_wait_context(CUcontext context);
/* Starts or wakes the thread that serves the queues. The caller holds engine_lock. */
void engine_wake_worker(void);

#endif
