/* pitch_loop [iterations [varying]]: works like an image pipeline: allocates pitched buffers of a
 * few image sizes, runs a small filter, and frees them. varying: draws the sides of each image from
 * half to full size, as for crops and pyramids. */
#include <algorithm>
#include <cuda_runtime.h>
#include <string>
#include <vector>

#include "check.h"
#include "kernels.cuh"

static __global__ void paint(uint8_t *image, size_t pitch, int width, int height, unsigned seed) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        image[(size_t)y * pitch + x] = (uint8_t)pattern(seed, (size_t)y * width + x);
}

static __global__ void box3(const uint8_t *in, size_t in_pitch, uint8_t *out, size_t out_pitch,
                            int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height)
        return;
    unsigned sum = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            sum += in[(size_t)min(max(y + dy, 0), height - 1) * in_pitch +
                      min(max(x + dx, 0), width - 1)];
    out[(size_t)y * out_pitch + x] = (uint8_t)(sum / 9);
}

static __global__ void total(const uint8_t *in, size_t pitch, int width, int height,
                             unsigned long long *sum) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        atomicAdd(sum,
                  (unsigned long long)in[(size_t)y * pitch + x] * (unsigned)(x % 7 + y % 5 + 1));
}

int main(int argc, char **argv) {
    static const struct size {
        int width, height;
    } sizes[] = {{320, 240}, {641, 481}, {1280, 720}, {1921, 1079}, {3840, 2160}, {97, 5003}};
    long iterations = arg_long(argc, argv, 1, 300);
    bool varying = argc > 2 && std::string(argv[2]) == "varying";
    uint64_t random = 11;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    unsigned long long sum = 0;
    size_t pitches = 0;
    std::vector<double> times;
    for (long i = 0; i < iterations; i++) {
        double start = now_s();
        for (size s : sizes) {
            if (varying) {
                s.width -= (int)(rng(&random) % (unsigned)(s.width / 2));
                s.height -= (int)(rng(&random) % (unsigned)(s.height / 2));
            }
            uint8_t *image, *blurred, *twice;
            size_t p1, p2, p3;
            unsigned long long *device_sum, here;
            CHECK(cudaMallocPitch(&image, &p1, s.width, s.height));
            CHECK(cudaMallocPitch(&blurred, &p2, s.width, s.height));
            CHECK(cudaMallocPitch(&twice, &p3, s.width * 3, s.height));
            CHECK(cudaMalloc(&device_sum, sizeof *device_sum));
            CHECK(cudaMemsetAsync(device_sum, 0, sizeof *device_sum, stream));
            CHECK(cudaMemset2DAsync(twice, p3, 1, s.width * 3, s.height, stream));
            dim3 block(32, 8), grid((s.width + 31) / 32, (s.height + 7) / 8);
            paint<<<grid, block, 0, stream>>>(image, p1, s.width, s.height, (unsigned)i);
            box3<<<grid, block, 0, stream>>>(image, p1, blurred, p2, s.width, s.height);
            CHECK(cudaFree(image));
            box3<<<grid, block, 0, stream>>>(blurred, p2, twice, p3, s.width, s.height);
            CHECK(cudaFree(blurred));
            total<<<grid, block, 0, stream>>>(twice, p3, s.width, s.height, device_sum);
            CHECK(cudaGetLastError());
            CHECK(cudaMemcpyAsync(&here, device_sum, sizeof here, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaStreamSynchronize(stream));
            CHECK(cudaFree(twice));
            CHECK(cudaFree(device_sum));
            sum = sum * 31 + here;
            pitches += p1 + p2 + p3;
        }
        times.push_back(now_s() - start);
    }
    std::nth_element(times.begin(), times.begin() + (long)times.size() / 2, times.end());
    print_time("per_iteration", times[times.size() / 2] * 1e6, "us");
    printf("%ld iterations: checksum %llu, pitches %zu\n", iterations, sum, pitches);
    return 0;
}
