/*
 * decay [managed | fits MIB]: frees memory, then runs a kernel for seconds. While the kernel runs,
 * a second process, this program with `fits` and without the library, must get the memory. Meant
 * for the library with a short GPUCACHE_DECAY_MS.
 *
 * managed: frees memory, then allocates managed memory that needs the space. The second process
 * must get the memory at once, also with a long GPUCACHE_DECAY_MS. Prints how long a kernel takes
 * that writes to all pages. Then does so in the other order, with a prefetch right after the free.
 */
#include "facts.cuh"

#define PIECE ((size_t)1 << 30)
#define RUNS_MS 10000
#if CUDART_VERSION >= 13000
#define DEVICE_0 cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0 /* no flags */
#else
#define DEVICE_0 0
#endif

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

/* Runs `fits` in a process without the library. Returns its status. */
static int ask_another(size_t mib) {
    std::string other =
        "env -u LD_PRELOAD /proc/" + std::to_string(getpid()) + "/exe fits " + std::to_string(mib);
    fflush(stdout);
    return system(other.c_str());
}

static __global__ void write_pages(char *p, size_t bytes) {
    size_t step = (size_t)gridDim.x * blockDim.x << 16;
    for (size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) << 16; i < bytes; i += step)
        p[i]++;
}

static void time_kernel(char *pages, int number) {
    double begin = now_s();
    write_pages<<<1024, 256>>>(pages, 20 * PIECE);
    CHECK(cudaDeviceSynchronize());
    printf("note: kernel %d: %.0f ms\n", number, (now_s() - begin) * 1e3);
}

static int managed() {
    size_t free_bytes, total;
    void *held, *p;
    char *pages;
    primary();
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(cudaMalloc(&held, free_bytes - 24 * PIECE)); /* 24 GiB are left */
    CHECK(cudaMalloc(&p, 18 * PIECE));
    CHECK(cudaMemset(p, 1, 18 * PIECE));
    CHECK(cudaFree(p));
    CHECK(cudaMallocManaged(&pages, 20 * PIECE));
    int status = ask_another(20 << 10);
    printf("managed memory: other's status %d\n", status);
    for (int turn = 0; turn < 3; turn++)
        time_kernel(pages, turn);
    CHECK(cudaFree(pages));
    CHECK(cudaMallocManaged(&pages, 20 * PIECE)); /* has no page yet */
    CHECK(cudaMalloc(&p, 18 * PIECE));
    CHECK(cudaMemset(p, 1, 18 * PIECE));
    CHECK(cudaFree(p));
    double begin = now_s();
    CHECK(cudaMemPrefetchAsync(pages, 20 * PIECE, DEVICE_0, 0));
    CHECK(cudaDeviceSynchronize());
    printf("note: prefetch: %.0f ms\n", (now_s() - begin) * 1e3);
    for (int turn = 3; turn < 6; turn++)
        time_kernel(pages, turn);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "managed") == 0)
        return managed();
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
        int status = ask_another((free_bytes >> 20) * 19 / 20);
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
