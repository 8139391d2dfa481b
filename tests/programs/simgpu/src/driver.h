/* What every part of the simulated libcuda shares. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "state.h"

#define API __attribute__((visibility("default")))

#define TRY(expression)                  \
    do {                                 \
        CUresult result_ = (expression); \
        if (result_) return result_;     \
    } while (0)

/* Defines an entry and its twin for programs compiled for per-thread default streams: in the twin,
 * the stream 0 means the calling thread's own. The function's body follows the macro. */
#define TWINS(name, suffix, parameters, arguments) \
    static CUresult name##_body parameters;        \
    API CUresult name parameters {                 \
        return name##_body arguments;              \
    }                                              \
    API CUresult name##suffix parameters {         \
        per_thread_default++;                      \
        CUresult result_ = name##_body arguments;  \
        per_thread_default--;                      \
        return result_;                            \
    }                                              \
    static CUresult name##_body parameters

extern __thread int per_thread_default;

/* This process's view of the machine, fixed by cuInit. */
struct driver {
    struct sim sim;
    int count;
    unsigned card[SIM_MAX_CARDS]; /* CUDA ordinal -> card */
};
extern struct driver driver;

/* CUDA_SUCCESS after cuInit; CUDA_ERROR_NOT_INITIALIZED before it and in a forked child. */
CUresult driver_ready(void);
CUresult driver_device(CUdevice device);

/*
 * At the head of calls that might wait or allocate: while this thread captures, or any other in
 * global mode, they are refused and spoil the capture, unless the thread has exchanged its mode.
 */
CUresult capture_permits(void);

/* The program used what it has destroyed (`what`, with its article): ends it. */
_Noreturn void misused(const char *what);

#endif
