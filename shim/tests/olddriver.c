/* An old driver: it has cuInit, contexts and cuMemAlloc_v2, but neither pools nor lookups. */
#include <dlfcn.h>

#include "cuda_api.h"
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
    return 0;
}
