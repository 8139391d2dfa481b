/* CUDA events: the mark of the last record. */
#ifndef SIM_EVENT_H
#define SIM_EVENT_H

#include "context.h"
#include "lane.h"

struct CUevent_st {
    uint32_t magic;
    unsigned flags;
    CUcontext context;
    struct mark *mark;         /* of the last record; NULL: never recorded */
    struct frontier *captured; /* recorded in a capture: the nodes before it */
    CUevent next_spare;
};

#endif
