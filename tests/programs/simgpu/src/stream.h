/* Streams: work in order. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "context.h"
#include "work.h"

/* When a stream's last piece of work ends: a time, or an amount of work on its lane. */
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
    struct moment tail;         /* of what has been handed to the card or the copy engines */
    uint64_t waited_until;      /* when the last event happened that it waited for */
    struct queued *head, **end; /* what has not: it waits for something */
    uint64_t length;            /* of that queue */
    struct mark *settling;      /* of the tail, while a time is needed for it */
    bool calling;               /* the worker is in a host function of the head */
    bool dying;                 /* destroyed; goes when its work is done */
    struct frontier *capture;   /* where it is in the graph that it records, or NULL */
    CUstream next, *link;       /* among all streams */
};

/* The stream behind a handle (0, 1, 2 included), of the current context. */
CUresult stream_get(CUstream handle, CUstream *stream);
/* Append work, after what the rules of default streams put before it. Captures where the stream
 * does. Takes engine_lock. */
CUresult stream_add(CUstream stream, struct work work);
/* For several pieces in a row: stream_enter takes engine_lock and applies those rules. */
CUresult stream_enter(CUstream stream);
void stream_leave(void);
/* Append past rules and capture; engine_lock held. */
void stream_append(CUstream stream, struct work work);
/* A mark of the stream's present end; the caller has engine_lock and drops it. */
struct mark *stream_mark(CUstream stream);
/* Make `stream` wait for all that `other` has now. engine_lock held. */
void stream_join(CUstream stream, CUstream other);
/* Everything done? engine_lock held. */
bool stream_idle(CUstream stream);
/* A stream of the driver's own, for the branches of graphs. engine_lock held. */
CUstream stream_new(CUcontext context, int kind);
void stream_end(CUstream stream);
/* Destroyed: it ends when its work has. */
void stream_retire(CUstream stream);

/* Push every queue as far as it goes; returns when to look again. engine_lock held. */
uint64_t engine_push(bool may_call);
/* Wait until the mark is reached. Takes engine_lock. */
CUresult engine_wait(CUcontext context, struct mark *mark);
CUresult engine_wait_and_drop(CUcontext context, struct mark *mark);
CUresult engine_wait_stream(CUstream stream);
CUresult engine_wait_context(CUcontext context);
/* Somebody must look after queues from now on. engine_lock held. */
void engine_wake_worker(void);

#endif
