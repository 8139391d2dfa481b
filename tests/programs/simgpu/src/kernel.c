#include "kernel.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAGIC = 0x46554e21,
    MAX_THREADS = 0,
    REGISTERS = 4,
    PTX = 5,
    BINARY = 6,
    DYNAMIC_SHARED = 8
};

static uint64_t unit_of(const char *text, size_t length) {
    if (length != 2) return 0;
    if (strncmp(text, "ns", 2) == 0) return 1;
    if (strncmp(text, "us", 2) == 0) return 1000;
    return strncmp(text, "ms", 2) == 0 ? 1000000 : 0;
}

/* "..._us_200": the last two words of a name are a unit and a number. */
static uint64_t fixed_time(const char *name) {
    const char *number = strrchr(name, '_');
    if (!number || number - name < 3 || !isdigit((unsigned char)number[1])) return 0;
    if (number - name > 3 && number[-3] != '_') return 0;
    return unit_of(number - 2, 2) * strtoull(number + 1, NULL, 10);
}

static uint64_t parameter_unit(const char *name) {
    return strncmp(name, "spin_", 5) == 0 ? unit_of(name + 5, strlen(name + 5)) : 0;
}

/* "..._code_300k" */
static uint64_t code_bytes(const char *name) {
    const char *size = strstr(name, "code_");
    char *end;
    if (!size) return 0;
    uint64_t kilobytes = strtoull(size + strlen("code_"), &end, 10);
    return *end == 'k' ? kilobytes << 10 : 0;
}

/* "..._local_4096" */
static int local_bytes(const char *name) {
    const char *size = strstr(name, "local_");
    return size ? atoi(size + strlen("local_")) : 0;
}

CUfunction function_new(const char *name) {
    CUfunction function = calloc(1, sizeof *function);
    if (!function) return NULL;
    snprintf(function->name, sizeof function->name, "%s", name);
    function->magic = MAGIC;
    function->fixed_ns = fixed_time(name);
    function->unit_ns = parameter_unit(name);
    function->code_bytes = code_bytes(name);
    function->faults = strncmp(name, "fault_", strlen("fault_")) == 0;
    function->attributes[MAX_THREADS] = 1024;
    function->attributes[REGISTERS] = 32;
    function->attributes[FUNCTION_LOCAL_BYTES] = local_bytes(name);
    function->attributes[PTX] = function->attributes[BINARY] = 80;
    function->attributes[DYNAMIC_SHARED] = 49152;
    function->block[0] = function->block[1] = function->block[2] = 1;
    return function;
}

CUresult function_check(CUfunction function) {
    TRY(driver_ready());
    return function && function->magic == MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult get_attribute(int *value, int attribute, CUfunction function) {
    TRY(function_check(function));
    if (!value || attribute < 0 || attribute >= FUNCTION_ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    *value = function->attributes[attribute];
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction function, int attribute, int value) {
    TRY(function_check(function));
    if (attribute < DYNAMIC_SHARED || attribute >= FUNCTION_ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    function->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

static CUresult get_name(const char **name, CUfunction function) {
    TRY(function_check(function));
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    TRY(function_load(function, NULL));
    return get_attribute(value, attribute, function);
}

API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
    TRY(driver_device(device));
    return get_attribute(value, attribute, kernel);
}

API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    TRY(function_load(function, NULL));
    return set_attribute(function, attribute, value);
}

API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
    TRY(driver_device(device));
    return set_attribute(kernel, attribute, value);
}

API CUresult cuFuncGetName(const char **name, CUfunction function) {
    return get_name(name, function);
}

API CUresult cuKernelGetName(const char **name, CUkernel kernel) {
    return get_name(name, kernel);
}

/* Caches and banks are not simulated, so any setting is accepted. */
API CUresult cuFuncSetCacheConfig(CUfunction function, int config) {
    (void)config;
    return function_check(function);
}

API CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device) {
    (void)config, (void)device;
    return function_check(kernel);
}

API CUresult cuFuncSetSharedMemConfig(CUfunction function, int config) {
    (void)config;
    return function_check(function);
}
