#ifndef SIM_EVENT_H
#define SIM_EVENT_H

#include "context.h"
#include "lane.h"

struct CUevent_st {
    uint32_t magic;
    unsigned flags;
    CUcontext context;
    struct mark *mark;         /* of the last record; NULL: never recorded */
    struct frontier *captured; /* recorded in a captured stream: what of its graph came before */
    CUevent next_spare;
};

#endif
