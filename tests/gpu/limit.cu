/*
 * limit pool|all|race LIMIT_MIB: allocates until it is refused, under GPUCACHE_MEMORY_LIMIT of as
 * many MiB.
 *
 *   pool  cudaMalloc only
 *   all   every kind of device memory in turn
 *   race  cudaMalloc from 16 threads
 *
 * The memory held must stay within the limit: as the program's own sum, and as nvidia-smi sees it
 * without the memory of the context. After the frees as much must fit again. Meant for the library;
 * natively there is no limit.
 */
#include <algorithm>
#include <atomic>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

static double smi_mib() {
    FILE *f = popen(
        "env -u LD_PRELOAD nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits",
        "r");
    double mib = -1;
    if (f) {
        if (fscanf(f, "%lf", &mib) != 1)
            mib = -1;
        pclose(f);
    }
    return mib;
}

struct held {
    int kind;
    void *p;
    size_t bytes;
};

static int take(held &h) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    int code;
    switch (h.kind) {
    case 0:
        return cudaMalloc(&h.p, h.bytes);
    case 1:
        code = cudaMallocAsync(&h.p, h.bytes, nullptr);
        return code ? code : (int)cudaStreamSynchronize(nullptr);
    case 2:
        return cuMemCreate((CUmemGenericAllocationHandle *)&h.p, h.bytes, &prop, 0);
    default: {
        cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
        return cudaMallocArray((cudaArray_t *)&h.p, &format, 4096, h.bytes / 16384);
    }
    }
}

static void give(const held &h) {
    switch (h.kind) {
    case 0:
        CHECK(cudaFree(h.p));
        break;
    case 1:
        CHECK(cudaFreeAsync(h.p, nullptr));
        break;
    case 2:
        CHECK(cuMemRelease((CUmemGenericAllocationHandle)h.p));
        break;
    default:
        CHECK(cudaFreeArray((cudaArray_t)h.p));
    }
}

/* The driver takes memory in units of 2 MiB. The number of blocks of 3 MiB depends on the threads,
 * so between 1536 and 2048 of 2048 MiB are held, natively too. */
static size_t as_taken(size_t bytes) {
    size_t unit = (size_t)2 << 20;
    return bytes > unit / 2 ? (bytes + unit - 1) / unit * unit : bytes;
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "pool";
    size_t limit = (size_t)arg_long(argc, argv, 2, 2048) << 20;
    int kinds = what == "all" ? 4 : 1, failed = 0;
    CHECK(cudaFree(nullptr));
    double before = smi_mib();
    size_t sums[2] = {};
    for (size_t &sum : sums) {
        std::vector<held> all;
        int codes[4] = {};
        if (what == "race") {
            std::vector<std::vector<held>> own(16);
            std::vector<std::thread> pool;
            std::atomic<int> odd{0};
            for (int t = 0; t < 16; t++)
                pool.emplace_back([&, t] {
                    held h = {0, nullptr, (size_t)(1 + t % 4) << 20};
                    int code;
                    CHECK(cudaSetDevice(0));
                    while ((code = take(h)) == 0)
                        own[t].push_back(h);
                    odd += code != cudaErrorMemoryAllocation;
                });
            for (auto &t : pool)
                t.join();
            for (auto &o : own)
                all.insert(all.end(), o.begin(), o.end());
            codes[0] = odd ? -1 : (int)cudaErrorMemoryAllocation;
        } else {
            for (bool more = true; more && all.size() < 4096;) {
                more = false;
                for (int k = 0; k < kinds; k++) {
                    held h = {k, nullptr, (size_t)32 << 20};
                    if (codes[k] || (codes[k] = take(h)) != 0)
                        continue;
                    all.push_back(h);
                    more = true;
                }
            }
        }
        (void)cudaGetLastError();
        size_t bytes = 0;
        for (const held &h : all) {
            bytes += h.bytes;
            sum += what == "race" ? as_taken(h.bytes) : h.bytes;
        }
        sum = std::min(sum, limit); /* some pools place blocks of 3 MiB side by side */
        size_t free_bytes, total;
        CHECK(cudaMemGetInfo(&free_bytes, &total));
        double seen = smi_mib() - before;
        for (int k = 0; k < kinds; k++)
            printf("kind %d refused with %d\n", k, codes[k]);
        size_t slack = (size_t)kinds * 96 << 20;
        bool within = bytes <= limit, enough = sum + slack >= limit,
             outside = before < 0 || seen <= (double)(limit >> 20) + 64;
        printf("within the limit %s, nearly all of it %s, nvidia-smi agrees %s, cudaMemGetInfo's "
               "total within it %s, free plus held within it %s\n",
               within ? "yes" : "NO", enough ? "yes" : "NO", outside ? "yes" : "NO",
               total <= limit ? "yes" : "no", free_bytes + bytes <= limit ? "yes" : "no");
        print_time("held", (double)(bytes >> 20), "MiB");
        print_time("seen_from_outside", seen, "MiB");
        failed |= !within || !enough || !outside;
        for (const held &h : all)
            give(h);
        CHECK(cudaDeviceSynchronize());
    }
    printf("as much the second time %s\n", sums[1] + (96 << 20) >= sums[0] ? "yes" : "NO");
    return failed || sums[1] + (96 << 20) < sums[0];
}
