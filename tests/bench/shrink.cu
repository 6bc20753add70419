/* shrink: frees one block of nearly all device memory, then fills the device with blocks of 24 MiB,
 * each of which a kernel uses. Prints the seconds that the small blocks took. */
#include <cuda_runtime.h>
#include <vector>

#include "../gpu/check.h"

static __global__ void touch(char *block) {
    block[threadIdx.x] = 1;
}

int main(void) {
    size_t available, total;
    char *block;
    std::vector<char *> blocks;
    CHECK(cudaMemGetInfo(&available, &total));
    CHECK(cudaMalloc(&block, available / 20 * 19));
    touch<<<1, 32>>>(block);
    CHECK(cudaGetLastError());
    CHECK(cudaFree(block));

    double begin = now_s();
    while (cudaMalloc(&block, 24 << 20) == cudaSuccess) {
        touch<<<1, 32>>>(block);
        blocks.push_back(block);
    }
    double seconds = now_s() - begin;
    if (cudaGetLastError() != cudaErrorMemoryAllocation ||
        blocks.size() * (24 << 20) < available / 20 * 19)
        DIE("only %zu blocks", blocks.size());
    for (char *one : blocks)
        CHECK(cudaFree(one));
    CHECK(cudaDeviceSynchronize());
    print_time("small_blocks", seconds, "s");
    return 0;
}
