/*
 * decay [fits MIB]: frees memory, then runs a kernel for seconds. While the kernel runs, a second
 * process, this program with `fits` and without the library, must get the memory. Meant for the
 * library with a short GPUCACHE_DECAY_MS.
 */
#include "facts.cuh"

#define PIECE ((size_t)1 << 30)
#define RUNS_MS 10000

/* A hundred GiB are some 50 000 pages, which take the driver a second or two. */
static int fits(size_t mib) {
    void *p;
    CHECK(cudaFree(0));
    double begin = now_s();
    cudaError_t code;
    while ((code = cudaMalloc(&p, mib << 20)) != cudaSuccess && now_s() < begin + RUNS_MS / 1e3 / 2)
        usleep(10000);
    size_t free_bytes, total;
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    printf("note: %zu MiB after %.1f s, %zu MiB are left\nfits %d\n", mib, now_s() - begin,
           free_bytes >> 20, code == cudaSuccess);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "fits") == 0)
        return fits((size_t)atol(argv[2]));
    primary();
    warm();
    cudaStream_t kernel = new_stream();
    size_t free_bytes, total;
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    std::vector<void *> pieces(free_bytes / PIECE * 3 / 4);
    for (int turn = 0; turn < 2; turn++) {
        for (auto &p : pieces) {
            CHECK(cudaMalloc(&p, PIECE));
            CHECK(cudaMemsetAsync(p, 1, PIECE, kernel));
        }
        if (turn == 0) /* work submitted before the frees that does not use the memory */
            spin_ms(kernel, 500);
        for (auto &p : pieces)
            CHECK(cudaFree(p));
        spin_ms(kernel, RUNS_MS);
        usleep(500000);
        std::string other = "env -u LD_PRELOAD /proc/" + std::to_string(getpid()) + "/exe fits " +
                            std::to_string((free_bytes >> 20) * 19 / 20);
        fflush(stdout);
        int status = system(other.c_str());
        printf("turn %d: other's status %d, kernel %s\n", turn, status,
               cudaStreamQuery(kernel) == cudaErrorNotReady ? "runs" : "is over");
        CHECK(cudaDeviceSynchronize());
    }
    void *p; /* the memory can be allocated again */
    CHECK(cudaMalloc(&p, PIECE * pieces.size() / 2));
    CHECK(cudaMemset(p, 1, PIECE * pieces.size() / 2));
    CHECK(cudaFree(p));
    return 0;
}
