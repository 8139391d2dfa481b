/* Memory for code on a card. Each context allocates whole chunks for it, which the functions of its
 * modules share. */
#ifndef SIM_CODE_H
#define SIM_CODE_H

#include "context.h"

struct code_chunk {
    struct code_chunk *next;
    uint64_t bytes, used;
    unsigned users;
};

/* A piece of code; all zero: not on the card. */
struct code {
    _Atomic(struct code_chunk *) chunk;
    uint64_t bytes, context_id;
};

/* Loads `bytes` of code to the card, unless it is loaded already. */
CUresult code_load(CUcontext context, uint64_t bytes, struct code *code);
void code_unload(CUcontext context, struct code *code);
bool code_is_loaded(CUcontext context, const struct code *code);

#endif
