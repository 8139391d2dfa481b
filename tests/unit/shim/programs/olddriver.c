/* An old driver: it has memory, contexts and launches, but neither pools, events nor lookups. */
#include <dlfcn.h>

#include "base/cuda_api.h"
#include "check.h"

int main(void) {
    CUdeviceptr pointer;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CHECK(driver);
    CHECK(!dlsym(driver, "cuMemAllocAsync"));
    CHECK(!dlsym(driver, "cuGetProcAddress_v2"));
    __typeof__(&cuInit) init = (__typeof__(&cuInit))dlsym(driver, "cuInit");
    __typeof__(&cuMemAlloc_v2) alloc = (__typeof__(&cuMemAlloc_v2))dlsym(driver, "cuMemAlloc_v2");
    __typeof__(&cuMemAllocAsync) missing =
        (__typeof__(&cuMemAllocAsync))dlsym(RTLD_DEFAULT, "cuMemAllocAsync");
    CHECK(!missing);
    CHECK_IS(init(0), CUDA_SUCCESS);
    CHECK_IS(alloc(&pointer, 65 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_IS(alloc(&pointer, 64 << 20), CUDA_SUCCESS);
    CHECK(!dlsym(driver, "cuLaunchKernelEx") && !dlsym(driver, "cuGraphLaunch"));
    __typeof__(&cuLaunchKernel) launch = (__typeof__(&cuLaunchKernel))dlsym(driver, "cuLaunchKernel");
    for (int i = 0; i < 1000; i++)
        CHECK_IS(launch((CUfunction)64, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    return 0;
}
