#include "code.h"

#include <pthread.h>
#include <stdlib.h>

#include "address.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct code_chunk *find_room(CUcontext context, uint64_t bytes) {
    struct code_chunk *chunk = context->code;
    while (chunk && chunk->bytes - chunk->used < bytes) chunk = chunk->next;
    return chunk;
}

static struct code_chunk *add_chunk(CUcontext context, uint64_t bytes) {
    struct code_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) abort();
    if (!sim_take(&driver.sim, context->card, bytes)) {
        free(chunk);
        return NULL;
    }
    context->charged += bytes; /* given back with the context, if not before */
    *chunk = (struct code_chunk){.next = context->code, .bytes = bytes};
    return context->code = chunk;
}

static CUresult load(CUcontext context, uint64_t bytes, struct code *code) {
    if (code_is_loaded(context, code)) return CUDA_SUCCESS; /* another thread loaded it meanwhile */
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    struct code_chunk *chunk = find_room(context, bytes);
    if (!chunk) chunk = add_chunk(context, round_up(bytes, PAGE_BYTES));
    if (!chunk) return CUDA_ERROR_OUT_OF_MEMORY;
    chunk->used += bytes;
    chunk->users++;
    code->bytes = bytes;
    code->context_id = context->id;
    code->chunk = chunk;
    return CUDA_SUCCESS;
}

CUresult code_load(CUcontext context, uint64_t bytes, struct code *code) {
    if (code_is_loaded(context, code)) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUresult result = load(context, bytes, code);
    pthread_mutex_unlock(&lock);
    return result;
}

static void remove_chunk(CUcontext context, struct code_chunk *chunk) {
    struct code_chunk **link = &context->code;
    while (*link != chunk) link = &(*link)->next;
    *link = chunk->next;
    context->charged -= chunk->bytes;
    sim_give(&driver.sim, context->card, chunk->bytes);
    free(chunk);
}

void code_unload(CUcontext context, struct code *code) {
    pthread_mutex_lock(&lock);
    if (code_is_loaded(context, code)) {
        struct code_chunk *chunk = code->chunk;
        chunk->used -= code->bytes;
        if (--chunk->users == 0) remove_chunk(context, chunk);
    }
    code->chunk = NULL;
    pthread_mutex_unlock(&lock);
}

bool code_is_loaded(CUcontext context, const struct code *code) {
    return context->alive && code->chunk && code->context_id == context->id;
}

void code_end_context(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (struct code_chunk *next, *each = context->code; each; each = next) {
        next = each->next;
        free(each);
    }
    context->code = NULL;
    pthread_mutex_unlock(&lock);
}
