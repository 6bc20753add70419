/*
 * spin order|grow|persistent|random [rounds] [seed]: law 3. Programs whose kernels spin on a flag
 * that later work sets. Natively each of them ends; under the library it must too. A kernel that
 * would spin for ever gives up after five seconds and is counted.
 *
 *   | case       | program                                                                       |
 *   | ---------- | ----------------------------------------------------------------------------- |
 *   | order      | free, launch A (spins), cudaMalloc, use the memory in another stream, launch  |
 *   |            | B there (sets the flag)                                                       |
 *   | grow       | the same, with larger requests between A and B than was ever freed            |
 *   | persistent | a kernel started after frees serves requests of the host, while the program   |
 *   |            | allocates and works                                                           |
 *   | random     | seeded sequences; frees only while every spinning kernel's flag is set (a     |
 *   |            | native free would hang)                                                       |
 */
#include <cstring>
#include <cuda_runtime.h>
#include <unistd.h>
#include <vector>

#include "check.h"
#include "kernels.cuh"

enum { limit_s = 5 };

static volatile int *flag;
static int *gave_up;
static unsigned long long *bad;
static cudaStream_t spinner, setter, workers[2];
static int level; /* next value of the flag */

static void start() {
    void *p;
    CHECK(cudaMalloc(&p, 3 * 256));
    CHECK(cudaMemset(p, 0, 3 * 256));
    flag = (volatile int *)p;
    gave_up = (int *)((char *)p + 256);
    bad = (unsigned long long *)((char *)p + 512);
    for (cudaStream_t *s : {&spinner, &setter, &workers[0], &workers[1]})
        CHECK(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
    /* The first launch of a kernel may load it, which waits for the device. So launch all kernels
     * before one spins. */
    spin_until<<<1, 1, 0, spinner>>>(flag, 0, gave_up, limit_s);
    set_flag<<<1, 1, 0, setter>>>(flag, 0);
    spin_ns<<<1, 1, 0, setter>>>(1);
    fill<<<1, 1, 0, setter>>>(nullptr, 0, 0);
    verify<<<1, 1, 0, setter>>>(nullptr, 0, 0, bad);
    CHECK(cudaDeviceSynchronize());
}

static void spin() {
    level++;
    spin_until<<<1, 1, 0, spinner>>>(flag, level, gave_up, limit_s);
    CHECK(cudaGetLastError());
}

static void release() {
    set_flag<<<1, 1, 0, setter>>>(flag, level);
    CHECK(cudaGetLastError());
}

static void use(uint32_t *p, size_t bytes, uint32_t seed, cudaStream_t s) {
    fill<<<grid_for(bytes / 4), 256, 0, s>>>(p, bytes / 4, seed);
    verify<<<grid_for(bytes / 4), 256, 0, s>>>(p, bytes / 4, seed, bad);
    CHECK(cudaGetLastError());
}

static const size_t order_sizes[] = {512, 4096, 65536, 1 << 20, 4 << 20, 64 << 20};

static void order(long rounds, bool grow) {
    for (long i = 0; i < rounds; i++) {
        size_t bytes = order_sizes[i % 6];
        uint32_t *freed[4], *p[8];
        for (auto &x : freed) {
            CHECK(cudaMalloc(&x, bytes));
            use(x, bytes, (uint32_t)i, workers[0]);
        }
        for (auto &x : freed)
            CHECK(cudaFree(x));
        spin();
        int n = grow ? 8 : 3;
        for (int k = 0; k < n; k++) {
            CHECK(cudaMalloc(&p[k], bytes));
            use(p[k], bytes, (uint32_t)(i + k), setter);
        }
        release();
        for (int k = 0; k < n; k++)
            CHECK(cudaFree(p[k]));
    }
    CHECK(cudaDeviceSynchronize());
}

static __global__ void serve(volatile int *request, volatile int *answer, int *given_up) {
    uint64_t end = device_ns() + (uint64_t)limit_s * 1000000000u;
    for (int done = 0;;) {
        int r = *request;
        if (r < 0)
            return;
        if (r != done) {
            done = r;
            *answer = r * 2;
            __threadfence_system();
        }
        if (device_ns() > end) {
            atomicAdd(given_up, 1);
            return;
        }
    }
}

static bool ask(volatile int *request, volatile int *answer, int what) {
    double end = now_s() + limit_s;
    *request = what;
    while (*answer != what * 2)
        if (now_s() > end)
            return false;
    return true;
}

static void persistent(long rounds) {
    int *shared, *device_shared;
    CHECK(cudaHostAlloc(&shared, 4096, cudaHostAllocMapped));
    CHECK(cudaHostGetDevicePointer(&device_shared, shared, 0));
    memset(shared, 0, 4096);
    volatile int *request = shared, *answer = shared + 64;
    shared[0] = -1;
    serve<<<1, 1, 0, spinner>>>(device_shared, device_shared + 64, gave_up);
    CHECK(cudaDeviceSynchronize());
    long unanswered = 0;
    std::vector<uint32_t *> last;
    for (long i = 0; i < rounds; i++) {
        size_t bytes = order_sizes[i % 6];
        for (uint32_t *p : last) {
            use(p, 512, (uint32_t)i, workers[i % 2]);
            CHECK(cudaFree(p));
        }
        last.clear();
        shared[0] = 0;
        shared[64] = 0;
        serve<<<1, 1, 0, spinner>>>(device_shared, device_shared + 64, gave_up);
        CHECK(cudaGetLastError());
        for (int k = 1; k <= 12; k++) {
            uint32_t *p;
            CHECK(cudaMalloc(&p, bytes));
            use(p, bytes, (uint32_t)k, workers[k % 2]);
            last.push_back(p);
            if (!ask(request, answer, k))
                unanswered++;
            if (k % 4 == 0)
                CHECK(cudaStreamSynchronize(workers[k % 2]));
        }
        *request = -1;
        CHECK(cudaStreamSynchronize(spinner));
    }
    for (uint32_t *p : last)
        CHECK(cudaFree(p));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFreeHost(shared));
    printf("%ld requests unanswered\n", unanswered);
}

static void random_steps(long rounds, uint64_t random) {
    struct block {
        uint32_t *p;
        size_t bytes;
        uint32_t seed;
        cudaStream_t s;
    };
    std::vector<block> live;
    size_t live_bytes = 0;
    bool spinning = false;
    long counts[4] = {};
    for (long i = 0; i < rounds; i++) {
        uint64_t r = rng(&random);
        unsigned what = (unsigned)(r % 100);
        if (what < 40 && live_bytes < (size_t)8 << 30) {
            block b = {nullptr, (size_t)256 << (r >> 8) % 17, (uint32_t)(r >> 32), nullptr};
            cudaStream_t choice[] = {spinner, setter, workers[0], workers[1]};
            b.s = choice[(r >> 16) % 4];
            b.bytes += ((r >> 20) % 100) * 4;
            CHECK(cudaMalloc(&b.p, b.bytes));
            fill<<<grid_for(b.bytes / 4), 256, 0, b.s>>>(b.p, b.bytes / 4, b.seed);
            CHECK(cudaGetLastError());
            live.push_back(b);
            live_bytes += b.bytes;
            counts[0]++;
        } else if (what < 80 && !live.empty() && !spinning) {
            size_t at = (r >> 8) % live.size();
            block b = live[at];
            live[at] = live.back();
            live.pop_back();
            live_bytes -= b.bytes;
            if ((r >> 40) % 8 == 0)
                spin_ns<<<1, 1, 0, b.s>>>(100000);
            verify<<<grid_for(b.bytes / 4), 256, 0, b.s>>>(b.p, b.bytes / 4, b.seed, bad);
            CHECK(cudaGetLastError());
            CHECK(cudaFree(b.p));
            counts[1]++;
        } else if (what < 90 && !spinning) {
            spin();
            spinning = true;
            counts[2]++;
        } else if (what >= 85 && spinning) {
            release();
            spinning = false;
            counts[3]++;
        }
    }
    if (spinning)
        release();
    for (const block &b : live) {
        verify<<<grid_for(b.bytes / 4), 256, 0, b.s>>>(b.p, b.bytes / 4, b.seed, bad);
        CHECK(cudaFree(b.p));
    }
    CHECK(cudaDeviceSynchronize());
    printf("%ld allocations, %ld frees, %ld spins\n", counts[0], counts[1], counts[2]);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "order";
    long rounds = arg_long(argc, argv, 2, 60);
    alarm(50);
    start();
    double begin = now_s();
    if (strcmp(what, "order") == 0)
        order(rounds, false);
    else if (strcmp(what, "grow") == 0)
        order(rounds, true);
    else if (strcmp(what, "persistent") == 0)
        persistent(rounds);
    else if (strcmp(what, "random") == 0)
        random_steps(rounds, (uint64_t)arg_long(argc, argv, 3, 1));
    else
        DIE("no scenario %s", what);
    print_time("total", (now_s() - begin) * 1e3, "ms");
    int stuck;
    unsigned long long wrong;
    CHECK(cudaMemcpy(&stuck, gave_up, sizeof stuck, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(&wrong, bad, sizeof wrong, cudaMemcpyDeviceToHost));
    printf("%s, %ld rounds: %d kernels gave up, %llu words wrong\n", what, rounds, stuck, wrong);
    CHECK(cudaFree((void *)flag));
    return stuck != 0 || wrong != 0;
}
