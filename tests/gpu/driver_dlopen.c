/* driver_dlopen [steps] [seed]: links no CUDA library; finds every entry by dlopen and dlsym. */
#include <cuda.h>
#include <dlfcn.h>

#define ENTRIES(X)                                                                                 \
    X(cuInit)                                                                                      \
    X(cuDeviceGet)                                                                                 \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxSetCurrent)                                                                             \
    X(cuCtxSynchronize)                                                                            \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleGetFunction)                                                                         \
    X(cuStreamCreate)                                                                              \
    X(cuLaunchKernel)                                                                              \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemsetD32)                                                                                 \
    X(cuMemGetAddressRange)                                                                        \
    X(cuMemcpyDtoH)

/* Macros of cuda.h replace the names by versioned symbols, both here and in D(). */
#define STRING(name) STRING_(name)
#define STRING_(name) #name

static struct {
#define MEMBER(name) __typeof__(name) *name;
    ENTRIES(MEMBER)
} driver;

#define D(name) driver.name
#include "driver_loop.h"

int main(int argc, char **argv) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        DIE("%s", dlerror());
#define FIND(name)                                                                                 \
    *(void **)&driver.name = dlsym(lib, STRING(name));                                             \
    if (!driver.name)                                                                              \
        DIE("%s", dlerror());
    ENTRIES(FIND)
    return driver_loop(argc, argv);
}
