/*
 * pairs [allocator...]: cudamalloc, driver (cuMemAlloc as cuGetProcAddress gives it), async
 * (cudaMallocAsync, threshold unlimited), cub (CachingDeviceAllocator), rmm_pool and rmm_arena (of
 * pairs_rmm.so in the program's folder). Runs natively for the peers, and under the library for its
 * own values.
 */
#include <cub/util_allocator.cuh>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include "driver/table/cuda_abi.h"
#include "pairs.h"
#include "streams.h"

struct cudamalloc {
    void enter() {
        CHECK(cudaSetDevice(0));
    }
    void leave() {}
    void synchronise() {
        CHECK(cudaDeviceSynchronize());
    }
    void *allocate(size_t bytes) {
        void *p;
        CHECK(cudaMalloc(&p, bytes));
        return p;
    }
    void release(void *p, size_t) {
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
        CHECK(cuGetProcAddress_v2("cuMemAlloc", (void **)&alloc, 12000, 0, &found));
        CHECK(cuGetProcAddress_v2("cuMemFree", (void **)&free, 12000, 0, &found));
    }
    void enter() {
        CHECK(cuCtxSetCurrent(context));
    }
    void leave() {}
    void synchronise() {
        CHECK(cuCtxSynchronize());
    }
    void *allocate(size_t bytes) {
        CUdeviceptr p;
        CHECK(alloc(&p, bytes));
        return (void *)p;
    }
    void release(void *p, size_t) {
        CHECK(free((CUdeviceptr)p));
    }
};

struct async : bench::on_own_stream {
    cudaMemPool_t pool;
    async() {
        uint64_t most = UINT64_MAX;
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
    }
    ~async() { /* the next allocator needs an empty device */
        CHECK(cudaMemPoolTrimTo(pool, 0));
    }
    void *allocate(size_t bytes) {
        void *p;
        CHECK(cudaMallocAsync(&p, bytes, bench::own_stream));
        return p;
    }
    void release(void *p, size_t) {
        CHECK(cudaFreeAsync(p, bench::own_stream));
    }
};

/* More bins than by default, 512 bytes to 256 MiB by powers of two. The default bins end at 2 MiB,
 * and larger blocks would not be cached. */
struct cub_cache : bench::on_own_stream {
    cub::CachingDeviceAllocator cache{2, 9, 28, (size_t)64 << 30, true};
    void *allocate(size_t bytes) {
        void *p;
        CHECK(cache.DeviceAllocate(&p, bytes, bench::own_stream));
        return p;
    }
    void release(void *p, size_t) {
        CHECK(cache.DeviceFree(p));
    }
};

template <class A> static void run(const char *name, double seconds) {
    A a;
    bench::all(name, a, seconds);
}

/* RMM brings its own CCCL, newer than the toolkit's, whose CUB is used here. The two must not be in
 * one object. */
static void run_rmm(const std::string &name, double seconds) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0)
        DIE("no /proc/self/exe");
    void *rmm = dlopen((std::string(path, (size_t)n) + "_rmm.so").c_str(), RTLD_NOW);
    if (!rmm)
        DIE("%s", dlerror());
    auto run = (void (*)(const char *, double))dlsym(rmm, "pairs_rmm");
    if (!run)
        DIE("%s", dlerror());
    run(name.c_str(), seconds);
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
        else if (name == "rmm_pool" || name == "rmm_arena")
            run_rmm(name, s);
        else
            DIE("no allocator %s", argv[i]);
    }
    return 0;
}
