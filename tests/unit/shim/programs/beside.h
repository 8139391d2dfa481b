/* Calls of one thread while another is in a call of the driver that does not return. */
#ifndef BESIDE_H
#define BESIDE_H

#include <pthread.h>
#include <sched.h>

#include "api.h"
#include "check.h"

static CUcontext home; /* the context that other threads use */

static inline void *beside_call(void *call) {
    CHECK_IS(cuCtxSetCurrent(home), CUDA_SUCCESS);
    ((void (*)(void))call)();
    return NULL;
}

static inline pthread_t begin_beside(void (*call)(void)) {
    pthread_t thread;
    CHECK_IS(cuCtxGetCurrent(&home), CUDA_SUCCESS);
    CHECK(!pthread_create(&thread, NULL, beside_call, (void *)call));
    return thread;
}

/* Waits until another thread is in the call that does not return. */
static inline void await_in(void) {
    while (!__atomic_load_n(&fake.is_in, __ATOMIC_ACQUIRE)) sched_yield();
}

/* Another thread makes the call, which does not return from the driver's call of that number. */
static inline pthread_t begin_in(enum fake_call number, void (*call)(void)) {
    fake.stays_in = number + 1;
    pthread_t thread = begin_beside(call);
    await_in();
    return thread;
}

static inline void end_in(pthread_t thread) {
    __atomic_store_n(&fake.stays_in, 0, __ATOMIC_RELEASE);
    CHECK(!pthread_join(thread, NULL));
}

/* `meanwhile`, in this thread, must not wait for the call: the driver may be waiting for this thread. */
static inline void while_in(enum fake_call number, void (*call)(void), void (*meanwhile)(void)) {
    pthread_t thread = begin_in(number, call);
    meanwhile();
    end_in(thread);
}

#endif
