/* Code on a card: each context takes whole chunks for it, which its modules' functions share. */
#ifndef SIM_CODE_H
#define SIM_CODE_H

#include "context.h"

struct code_chunk {
    struct code_chunk *next;
    uint64_t bytes, used;
    unsigned users;
};

/* One piece of it; all zero: not on the card. */
struct code {
    _Atomic(struct code_chunk *) chunk;
    uint64_t bytes, context_id;
};

/* Brings it to the card, if it is not there. */
CUresult code_load(CUcontext context, uint64_t bytes, struct code *code);
void code_unload(CUcontext context, struct code *code);
bool code_is_loaded(CUcontext context, const struct code *code);

#endif
