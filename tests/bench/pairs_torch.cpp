/* pairs_torch: measures PyTorch's caching allocator by its C++ interface. */
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "pairs.h"

struct torch_cache {
    void enter() {
        c10::cuda::set_device(0);
    }
    void leave() {}
    void synchronise() {
        CHECK(cudaDeviceSynchronize());
    }
    void *allocate(size_t bytes) {
        return c10::cuda::CUDACachingAllocator::raw_alloc(bytes);
    }
    void release(void *p, size_t) {
        c10::cuda::CUDACachingAllocator::raw_delete(p);
    }
};

int main() {
    c10::cuda::set_device(0);
    CHECK(cudaFree(nullptr));
    c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
    const char *seconds = getenv("PAIRS_SECONDS");
    torch_cache a;
    bench::all("torch", a, seconds ? atof(seconds) : 0.06);
    return 0;
}
