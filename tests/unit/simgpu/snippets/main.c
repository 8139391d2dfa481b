/* Runs the snippet that is named, with the rest of the command line for it. */
#include "snippet.h"

struct snippet *snippets;
char **arguments;

CUcontext start(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

size_t used(void) {
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    return total - left;
}

CUfunction kernel(const char *name) {
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, "\177ELF"));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

void launch_blocks(CUfunction function, unsigned blocks, CUstream stream) {
    OK(cuLaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
}

void launch(CUfunction function, CUstream stream) {
    int sms;
    OK(cuDeviceGetAttribute(&sms, 16, 0));
    launch_blocks(function, (unsigned)sms * 2, stream);
}

long elapsed_us(CUevent from, CUevent to) {
    float milliseconds;
    OK(cuEventElapsedTime(&milliseconds, from, to));
    return (long)(milliseconds * 1000 + 0.5);
}

CUevent event(void) {
    CUevent made;
    OK(cuEventCreate(&made, 0));
    return made;
}

CUstream stream(void) {
    CUstream made;
    OK(cuStreamCreate(&made, 1));
    return made;
}

int main(int count, char **words) {
    arguments = words + 2;
    for (const struct snippet *each = snippets; count > 1 && each; each = each->next) {
        if (strcmp(each->name, words[1]) != 0) continue;
        each->run();
        return 0;
    }
    fprintf(stderr, "no such snippet\n");
    return 2;
}
