/* Green contexts, by entries that a driver may lack. */
#ifndef GPUCACHE_TESTS_GREEN_H
#define GPUCACHE_TESTS_GREEN_H

#include "program.h"

#include <dlfcn.h>
#include <stdbool.h>

struct green {
    CUgreenCtx green;
    CUcontext view;
};

static inline bool green_begin(struct green *g, CUdevice device) {
    typedef CUresult CUDAAPI get(CUdevice, CUdevResource *, CUdevResourceType);
    typedef CUresult CUDAAPI describe(CUdevResourceDesc *, CUdevResource *, unsigned);
    typedef CUresult CUDAAPI make(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
    get *resource = (get *)dlsym(RTLD_DEFAULT, "cuDeviceGetDevResource");
    describe *desc_of = (describe *)dlsym(RTLD_DEFAULT, "cuDevResourceGenerateDesc");
    make *create_green = (make *)dlsym(RTLD_DEFAULT, "cuGreenCtxCreate");
    CUdevResource all;
    CUdevResourceDesc desc;
    return resource && desc_of && create_green &&
           resource(device, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
           desc_of(&desc, &all, 1) == CUDA_SUCCESS &&
           create_green(&g->green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS;
}

static inline CUresult green_view(struct green *g) {
    typedef CUresult CUDAAPI from(CUcontext *, CUgreenCtx);
    from *view = (from *)dlsym(RTLD_DEFAULT, "cuCtxFromGreenCtx");
    return view ? view(&g->view, g->green) : CUDA_ERROR_NOT_SUPPORTED;
}

static inline CUresult green_end(struct green *g) {
    typedef CUresult CUDAAPI end(CUgreenCtx);
    end *destroy_green = (end *)dlsym(RTLD_DEFAULT, "cuGreenCtxDestroy");
    return destroy_green ? destroy_green(g->green) : CUDA_ERROR_NOT_SUPPORTED;
}

#endif
