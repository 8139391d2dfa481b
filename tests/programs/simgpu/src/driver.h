/* Declarations that all parts of the simulated libcuda share. */
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

/* Defines an entry point and its twin for programs compiled for per-thread default streams: in the
 * twin, stream 0 means the calling thread's own stream. The function's body follows the macro. */
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

/* The state of the driver in this process, set by cuInit. */
struct driver {
    struct sim sim;
    int count;
    unsigned card[SIM_MAX_CARDS]; /* CUDA ordinal -> card number */
};
extern struct driver driver;

/* Returns CUDA_SUCCESS after cuInit, and CUDA_ERROR_NOT_INITIALIZED before it and in a forked
 * child. */
CUresult driver_ready(void);
CUresult driver_device(CUdevice device);

/*
 * To be called first by entry points that might wait or allocate. They are refused and invalidate
 * the capture while this thread captures, or another thread captures in global mode, unless the
 * thread has changed its mode (cuThreadExchangeStreamCaptureMode).
 */
CUresult capture_permits(void);

/* Aborts a program that used an object after it had destroyed it. `what`: the object, with its
 * article. */
_Noreturn void misused(const char *what);

#endif
