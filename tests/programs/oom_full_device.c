/*
 * Requests on a full device that the driver alone serves. Live memory never exceeds the device, so
 * each request must succeed.
 *
 *   | mode         | memory | program                                                          |
 *   | ------------ | ------ | ---------------------------------------------------------------- |
 *   | barrier KIND | 64 MiB | one thread: memory of cuMemFreeAsync in an idle stream serves a  |
 *   |              |        | request of KIND while the context's streams wait for a kernel;   |
 *   |              |        | cuMemGetInfo counts it                                           |
 *   | own KIND     | 64 MiB | one thread: a request of KIND after a deferred free in a busy    |
 *   |              |        | stream, and a free that natively waits for that stream           |
 *   | capture KIND | 64 MiB | one thread: a request of KIND during a capture, after a free of  |
 *   |              |        | stream-ordered memory                                            |
 *   | reserve KIND | 64 MiB | one thread: a request of KIND after a free of stream-ordered     |
 *   |              |        | memory, and a free that natively waits for its stream            |
 *   | streams SEED | 48 MiB | three threads, one of which frees in the order of its stream     |
 *   | caches SEED  | 10 MiB | four threads, with blocks of one size in the caches of threads   |
 *   | one SEED     | 64 MiB | one thread takes and frees 32 MiB all the time; another requests |
 *   |              |        | 1 MiB once                                                       |
 *
 * For the simulator alone, with GPUCACHE_SIM_MEMORY of that size.
 */
#include "program.h"
#include "sim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define KIB ((size_t)1 << 10)

static CUcontext context;
static struct kernels k;
static _Atomic unsigned refused;

static CUstream new_stream(void) {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void count(CUresult r) {
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        atomic_fetch_add(&refused, 1);
    else
        CHECK(r);
}

static CUresult ask(const char *kind, CUstream stream) {
    static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    static const CUDA_ARRAY_DESCRIPTOR flat = {2048, 1024, CU_AD_FORMAT_FLOAT, 4};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;
    CUarray array;
    size_t free_bytes, total;
    CUresult r = CUDA_SUCCESS;
    if (strcmp(kind, "large") == 0)
        return cuMemAlloc(&p, 32 * MIB);
    if (strcmp(kind, "ordered") == 0)
        return cuMemAllocAsync(&p, 32 * MIB, stream);
    if (strcmp(kind, "virtual") == 0)
        return cuMemCreate(&handle, 32 * MIB, &prop, 0);
    if (strcmp(kind, "array") == 0)
        return cuArrayCreate(&array, &flat);
    if (strcmp(kind, "info") == 0) {
        CHECK(cuMemGetInfo(&free_bytes, &total));
        return free_bytes == 32 * MIB ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (int i = 0; i < 32 && r == CUDA_SUCCESS; i++) /* small blocks */
        r = cuMemAlloc(&p, MIB);
    return r;
}

/* The second allocation gets the memory of the first one, in barrier mode behind a barrier. */
static void barrier(const char *kind) {
    CUstream busy = new_stream(), idle = new_stream();
    CUdeviceptr first, second, third;
    CHECK(cuMemAlloc(&first, 32 * MIB));
    CHECK(cuMemAlloc(&third, 32 * MIB));
    CHECK(launch_sleep(&k, busy, 100000));
    CHECK(launch_fill(&k, busy, first, 1, 1000));
    CHECK(cuMemFree(first));
    CHECK(cuMemAlloc(&second, 32 * MIB));
    CHECK(cuMemFreeAsync(third, idle));
    CHECK(cuStreamSynchronize(idle));
    count(ask(kind, idle));
}

/* Natively cuMemFree() waits for the stream, which then has reached the deferred free. */
static void own(const char *kind) {
    CUstream busy = new_stream();
    CUdeviceptr small, live, large;
    CHECK(cuMemAlloc(&small, 4 * KIB));
    CHECK(cuMemAlloc(&live, 4 * KIB));
    CHECK(cuMemAlloc(&large, 48 * MIB));
    CHECK(launch_sleep(&k, busy, 100000));
    CHECK(launch_fill(&k, busy, large, 1, 1000));
    CHECK(cuMemFreeAsync(large, busy));
    CHECK(cuMemFree(small));
    count(ask(kind, new_stream()));
}

/* The driver's own pool keeps the freed memory: no call waits for it. */
static void capture(const char *kind) {
    CUstream stream = new_stream(), captured = new_stream();
    CUdeviceptr p;
    CUgraph graph;
    CHECK(cuMemAllocAsync(&p, 48 * MIB, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemFreeAsync(p, stream));
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    count(ask(kind, stream));
    CHECK(cuStreamEndCapture(captured, &graph));
}

/* Natively cuMemFree() waits, and the driver's own pool then gives its free memory back. */
static void reserve(const char *kind) {
    CUstream stream = new_stream();
    CUdeviceptr small, live, p;
    CHECK(cuMemAlloc(&small, 4 * KIB));
    CHECK(cuMemAlloc(&live, 4 * KIB));
    CHECK(cuMemAllocAsync(&p, 32 * MIB, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemFreeAsync(p, stream));
    CHECK(cuMemFree(small));
    count(ask(kind, stream));
}

struct job {
    uint64_t seed;
    unsigned number;
};

/* Varies the schedule beyond the simulator's seed. */
static void dawdle(struct job *job) {
    if (pick(&job->seed, 2))
        usleep(pick(&job->seed, 500));
}

static void *stream_work(void *of) {
    struct job *job = of;
    CHECK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    for (unsigned i = 0; i < 60; i++) {
        CUdeviceptr p;
        CUresult r = cuMemAlloc(&p, 16 * MIB);
        count(r);
        if (r != CUDA_SUCCESS)
            continue;
        CHECK(launch_fill(&k, stream, p, 1, 4096));
        if (job->number > 0) {
            dawdle(job);
            CHECK(cuMemFree(p));
            continue;
        }
        CHECK(cuMemFreeAsync(p, stream));
        CHECK(cuStreamSynchronize(stream));
    }
    return NULL;
}

static void *cache_work(void *of) {
    struct job *job = of;
    CUdeviceptr blocks[40] = {0};
    CHECK(cuCtxSetCurrent(context));
    CUstream streams[2] = {new_stream(), new_stream()};
    for (unsigned i = 0; i < 300; i++) {
        CUdeviceptr *block = &blocks[pick(&job->seed, 40)];
        if (*block) {
            CHECK(cuMemFree(*block));
            *block = 0;
            continue;
        }
        CUresult r = cuMemAlloc(block, 64 * KIB);
        count(r);
        if (r != CUDA_SUCCESS)
            *block = 0;
        CUstream stream = streams[pick(&job->seed, 2)];
        for (unsigned part = 0; *block && part < 4; part++)
            CHECK(launch_fill(&k, stream, *block + part * 4 * KIB, 1, 256));
    }
    return NULL;
}

static void *one_work(void *of) {
    struct job *job = of;
    CUdeviceptr p;
    CHECK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    if (job->number == 0)
        count(cuMemAlloc(&p, MIB));
    for (unsigned i = 0; job->number > 0 && i < 60; i++) {
        CHECK(cuMemAlloc(&p, 32 * MIB));
        CHECK(launch_fill(&k, stream, p, 1, 4096));
        dawdle(job);
        CHECK(cuMemFree(p));
    }
    return NULL;
}

static void together(void *(*work)(void *), unsigned threads, uint64_t seed) {
    struct job jobs[4];
    pthread_t thread[4];
    for (unsigned i = 0; i < threads; i++) {
        jobs[i] = (struct job){draw(&seed), i};
        pthread_create(&thread[i], NULL, work, &jobs[i]);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
}

int main(int argc, char **argv) {
    const char *mode = argc > 2 ? argv[1] : "", *which = argc > 2 ? argv[2] : "";
    uint64_t seed = strtoull(which, NULL, 0), drawn = seed;
    context = begin();
    sim_set_seed(seed);
    sim_set_eager(strcmp(mode, "one") == 0 ? 4 : 2 + pick(&drawn, 60));
    kernels_load(&k);
    if (strcmp(mode, "barrier") == 0)
        barrier(which);
    else if (strcmp(mode, "own") == 0)
        own(which);
    else if (strcmp(mode, "capture") == 0)
        capture(which);
    else if (strcmp(mode, "reserve") == 0)
        reserve(which);
    else if (strcmp(mode, "streams") == 0)
        together(stream_work, 3, seed);
    else if (strcmp(mode, "caches") == 0)
        together(cache_work, 4, seed);
    else if (strcmp(mode, "one") == 0)
        together(one_work, 2, seed);
    else
        return 2;
    printf("%u refused\n", refused);
    return 0;
}
