/* Pieces of work, of which streams and graphs consist. */
#ifndef SIM_WORK_H
#define SIM_WORK_H

#include "lane.h"

enum work_kind { WORK_EMPTY, WORK_KERNEL, WORK_COPY, WORK_CALL, WORK_RECORD, WORK_WAIT, WORK_FREE };

enum copy_engine { ENGINE_TO_CARD, ENGINE_FROM_CARD, ENGINE_WITHIN };

/* A box of bytes to copy, or to fill with a repeated pattern if `source` is NULL. */
struct box {
    char *target;
    const char *source;
    uint64_t target_pitch, target_slice, source_pitch, source_slice;
    uint64_t width, height, depth; /* width (bytes), height and depth */
    uint32_t pattern;
    unsigned pattern_bytes;
};

struct work {
    enum work_kind kind;
    union {
        struct {
            uint64_t ns; /* time (ns) on an idle card */
            unsigned sms;
        } kernel;
        struct {
            struct box box;
            enum copy_engine engine;
        } copy;
        struct {
            CUhostFn function;
            void *data;
        } call;
        struct mark *mark;   /* for WORK_RECORD and WORK_WAIT; the work is one of its users */
        CUdeviceptr pointer; /* for WORK_FREE */
    };
};

void box_run(const struct box *box);
uint64_t box_bytes(const struct box *box);

#endif
