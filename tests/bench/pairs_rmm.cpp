/*
 * pairs_rmm.so: RMM's pool and arena, for pairs to load. Their memory comes from cudaMalloc: from
 * the driver, if pairs runs without the library.
 *
 * The initial size is the one of RMM's own benchmark or the default: half of the free memory.
 */
#include <exception>
#include <rmm/cuda_device.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "pairs.h"
#include "streams.h"

template <class R> struct rmm_cache : bench::on_own_stream {
    R resource;
    void *allocate(size_t bytes) {
        return resource.allocate(cuda::stream_ref{bench::own_stream}, bytes,
                                 rmm::CUDA_ALLOCATION_ALIGNMENT);
    }
    void release(void *p, size_t bytes) {
        resource.deallocate(cuda::stream_ref{bench::own_stream}, p, bytes,
                            rmm::CUDA_ALLOCATION_ALIGNMENT);
    }
};

extern "C" __attribute__((visibility("default"))) void pairs_rmm(const char *name, double seconds) {
    try {
        CHECK(cudaSetDevice(0));
        rmm::mr::cuda_memory_resource upstream;
        if (std::string(name) == "rmm_pool") {
            rmm_cache<rmm::mr::pool_memory_resource> a{
                {},
                rmm::mr::pool_memory_resource{upstream, rmm::percent_of_free_device_memory(50)}};
            bench::all(name, a, seconds);
        } else {
            rmm_cache<rmm::mr::arena_memory_resource> a{{},
                                                        rmm::mr::arena_memory_resource{upstream}};
            bench::all(name, a, seconds);
        }
    } catch (const std::exception &error) {
        DIE("%s: %s", name, error.what());
    }
}
