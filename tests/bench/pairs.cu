/*
 * pairs [allocator...]: cudamalloc, driver (cuMemAlloc as cuGetProcAddress gives it), async
 * (cudaMallocAsync, threshold unlimited), cub (CachingDeviceAllocator). Run natively for the peers
 * and under the library for ours.
 */
#include <cub/util_allocator.cuh>
#include <cuda.h>
#include <cuda_runtime.h>

#include "pairs.h"

struct cudamalloc {
    void enter() {
        CHECK(cudaSetDevice(0));
    }
    void leave() {}
    void settle() {
        CHECK(cudaDeviceSynchronize());
    }
    void *allocate(size_t bytes) {
        void *p;
        CHECK(cudaMalloc(&p, bytes));
        return p;
    }
    void release(void *p) {
        CHECK(cudaFree(p));
    }
};

struct driver {
    CUcontext context;
    decltype(&cuMemAlloc) alloc;
    decltype(&cuMemFree) free;
    driver() {
        CUdriverProcAddressQueryResult found;
        CHECK(cuCtxGetCurrent(&context));
        CHECK(cuGetProcAddress("cuMemAlloc", (void **)&alloc, 12000, 0, &found));
        CHECK(cuGetProcAddress("cuMemFree", (void **)&free, 12000, 0, &found));
    }
    void enter() {
        CHECK(cuCtxSetCurrent(context));
    }
    void leave() {}
    void settle() {
        CHECK(cuCtxSynchronize());
    }
    void *allocate(size_t bytes) {
        CUdeviceptr p;
        CHECK(alloc(&p, bytes));
        return (void *)p;
    }
    void release(void *p) {
        CHECK(free((CUdeviceptr)p));
    }
};

static thread_local cudaStream_t own_stream;

struct async {
    async() {
        cudaMemPool_t pool;
        uint64_t most = UINT64_MAX;
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
    }
    void enter() {
        CHECK(cudaSetDevice(0));
        CHECK(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
    }
    void leave() {
        CHECK(cudaStreamDestroy(own_stream));
    }
    void settle() {
        CHECK(cudaDeviceSynchronize());
    }
    void *allocate(size_t bytes) {
        void *p;
        CHECK(cudaMallocAsync(&p, bytes, own_stream));
        return p;
    }
    void release(void *p) {
        CHECK(cudaFreeAsync(p, own_stream));
    }
};

/* Finer bins than its default (512 bytes to 256 MiB by powers of two): those end at 2 MiB, what is
 * larger would not be cached. */
struct cub_cache {
    cub::CachingDeviceAllocator cache{2, 9, 28, (size_t)64 << 30, true};
    void enter() {
        CHECK(cudaSetDevice(0));
        CHECK(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
    }
    void leave() {
        CHECK(cudaStreamDestroy(own_stream));
    }
    void settle() {
        CHECK(cudaDeviceSynchronize());
    }
    void *allocate(size_t bytes) {
        void *p;
        CHECK(cache.DeviceAllocate(&p, bytes, own_stream));
        return p;
    }
    void release(void *p) {
        CHECK(cache.DeviceFree(p));
    }
};

template <class A> static void run(const char *name, double seconds) {
    A a;
    bench::all(name, a, seconds);
}

int main(int argc, char **argv) {
    CHECK(cudaFree(nullptr));
    const char *seconds = getenv("PAIRS_SECONDS");
    double s = seconds ? atof(seconds) : 0.06;
    for (int i = 1; i < argc; i++) {
        std::string name = argv[i];
        if (name == "cudamalloc")
            run<cudamalloc>("cudamalloc", s);
        else if (name == "driver")
            run<driver>("driver", s);
        else if (name == "async")
            run<async>("async", s);
        else if (name == "cub")
            run<cub_cache>("cub", s);
        else
            DIE("no allocator %s", argv[i]);
    }
    return 0;
}
