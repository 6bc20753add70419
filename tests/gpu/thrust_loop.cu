/* thrust_loop [n] [iterations]: sort and scan over device vectors that live for one iteration each.
 */
#include <thrust/device_vector.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <algorithm>
#include <vector>

#include "check.h"
#include "kernels.cuh"

struct key {
    uint32_t seed;
    __device__ uint32_t operator()(uint32_t i) const {
        return pattern(seed, i) >> 4;
    }
};

int main(int argc, char **argv) {
    long n = arg_long(argc, argv, 1, 1000), iterations = arg_long(argc, argv, 2, 500);
    unsigned long long sum = 0;
    std::vector<double> times;
    for (long i = 0; i < iterations; i++) {
        double start = now_s();
        thrust::device_vector<uint32_t> keys(n);
        thrust::transform(thrust::counting_iterator<uint32_t>(0),
                          thrust::counting_iterator<uint32_t>((uint32_t)n), keys.begin(),
                          key{(uint32_t)i});
        thrust::device_vector<unsigned long long> sums(n);
        thrust::sort(keys.begin(), keys.end());
        thrust::inclusive_scan(keys.begin(), keys.end(), sums.begin(),
                               cuda::std::plus<unsigned long long>());
        sum = sum * 31 + sums[n - 1] + keys[n / 2];
        times.push_back(now_s() - start);
    }
    std::nth_element(times.begin(), times.begin() + (long)times.size() / 2, times.end());
    print_time("per_iteration", times[times.size() / 2] * 1e6, "us");
    printf("thrust n %ld, %ld iterations: checksum %llu\n", n, iterations, sum);
    return 0;
}
