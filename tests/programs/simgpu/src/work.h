/* What streams and graphs are made of: pieces of work, each done after the one before it. */
#ifndef SIM_WORK_H
#define SIM_WORK_H

#include "lane.h"

enum work_kind { WORK_EMPTY, WORK_KERNEL, WORK_COPY, WORK_CALL, WORK_RECORD, WORK_WAIT, WORK_FREE };

enum copy_engine { ENGINE_TO_CARD, ENGINE_FROM_CARD, ENGINE_WITHIN };

/* A box of bytes to copy or, where `source` is NULL, to fill with a repeated pattern. */
struct box {
    char *target;
    const char *source;
    uint64_t target_pitch, target_slice, source_pitch, source_slice;
    uint64_t width, height, depth; /* width in bytes */
    uint32_t pattern;
    unsigned pattern_bytes;
};

struct work {
    enum work_kind kind;
    union {
        struct {
            uint64_t ns; /* on an idle card */
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
        struct mark *mark;   /* WORK_RECORD and WORK_WAIT: one use of it is the work's */
        CUdeviceptr pointer; /* WORK_FREE */
    };
};

void box_run(const struct box *box);
uint64_t box_bytes(const struct box *box);

#endif
