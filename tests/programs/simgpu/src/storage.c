#include "storage.h"

#include <pthread.h>
#include <stdlib.h>

struct stored {
    void *key, *value;
    storage_gone gone;
    struct stored *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult living(CUcontext *context) {
    return *context ? context_check(*context) : context_current(context);
}

/* The caller holds the lock. */
static struct stored **find(CUcontext context, const void *key) {
    struct stored **link = &context->storage;
    while (*link && (*link)->key != key) link = &(*link)->next;
    return link;
}

CUresult storage_put(CUcontext context, void *key, void *value, storage_gone gone) {
    TRY(living(&context));
    pthread_mutex_lock(&lock);
    struct stored **place = find(context, key);
    if (!*place) *place = calloc(1, sizeof **place);
    if (!*place) abort();
    **place = (struct stored){key, value, gone, (*place)->next};
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static struct stored *take_out(struct stored **place) {
    struct stored *found = *place;
    if (found) *place = found->next;
    return found;
}

CUresult storage_remove(CUcontext context, void *key) {
    TRY(living(&context));
    pthread_mutex_lock(&lock);
    free(take_out(find(context, key)));
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult storage_get(void **value, CUcontext context, void *key) {
    TRY(living(&context));
    pthread_mutex_lock(&lock);
    const struct stored *found = *find(context, key);
    if (found) *value = found->value;
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void storage_end_context(CUcontext context) {
    struct stored *each;
    do {
        pthread_mutex_lock(&lock);
        each = take_out(&context->storage);
        pthread_mutex_unlock(&lock);
        if (each && each->gone) each->gone(context, each->key, each->value);
        free(each);
    } while (each);
}
