/* A context on the first card, and a kernel `spin_ns` that takes as long as its parameter says. */
#ifndef MIZAR_BENCH_SPIN_H
#define MIZAR_BENCH_SPIN_H

#include "driver.h"

enum { MULTIPROCESSORS = 16 };

static const char image[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                            ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";

static CUcontext context;
static CUfunction spin;
static int multiprocessors;

static void open_card(void) {
    CUmodule module;
    open_driver();
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &context, 0);
    DO(cuCtxSetCurrent, context);
    DO(cuModuleLoadData, &module, image);
    DO(cuModuleGetFunction, &spin, module, "spin_ns");
    DO(cuDeviceGetAttribute, &multiprocessors, MULTIPROCESSORS, 0);
}

#endif
