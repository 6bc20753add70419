/*
 * busy SECONDS SEED: keeps the GPU busy for other processes' tests: kernels of up to 3 ms in two
 * streams, memory taken and freed between them. Time slices change every order.
 */
#include "facts.cuh"

int main(int argc, char **argv) {
    double until = now_s() + (argc > 1 ? atof(argv[1]) : 60);
    unsigned seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    primary();
    cudaStream_t streams[2] = {new_stream(), new_stream()};
    for (unsigned turn = 0; now_s() < until; turn++) {
        seed = seed * 1664525u + 1013904223u;
        size_t words = (seed >> 20) * 256 + 1024;
        uint32_t *p;
        CHECK(cudaMalloc(&p, words * sizeof *p));
        spin_ms(streams[turn % 2], (int)(seed >> 16 & 3));
        fill<<<grid_for(words), 256, 0, streams[turn % 2]>>>(p, words, seed);
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(streams[turn % 2]));
        CHECK(cudaFree(p));
    }
    return 0;
}
