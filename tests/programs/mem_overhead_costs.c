/*
 * Rows of mem_overhead.txt: costs that grow with history. For the simulator alone. Costs in
 * instructions without driver calls are counted in tests/bench/instructions.txt.
 */
#include "mem_overhead.h"

#include <pthread.h>

/* pinned_unasked SIZES PAIRS MIB: allocates and frees one pinned block of each of SIZES sizes,
 * which never repeat. Then makes PAIRS pairs of one size. */
static void pinned_unasked(char **arguments) {
    long sizes = atol(arguments[0]), pairs = atol(arguments[1]);
    size_t bytes = (size_t)atol(arguments[2]) * MIB;
    void *host;
    begin();
    free_block(alloc_block(4096));
    for (long i = 0; i < sizes; i++) {
        CHECK(cuMemAllocHost(&host, 32 * MIB - (size_t)i * 4096));
        CHECK(cuMemFreeHost(host));
    }
    uint64_t before = sim_calls("cuMemAllocHost_v2");
    for (long i = 0; i < pairs; i++) {
        CHECK(cuMemAllocHost(&host, bytes));
        CHECK(cuMemFreeHost(host));
    }
    uint64_t allocs = sim_calls("cuMemAllocHost_v2");
    printf("kept=%lu allocs=%lu\n", allocs - sim_calls("cuMemFreeHost"), allocs - before);
}

static CUcontext context;
static long pairs_each;

static void *free_in_stream(void *unused) {
    CUstream stream;
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (long i = 0; i < pairs_each; i++)
        CHECK(cuMemFreeAsync(alloc_block(64 * KIB), stream));
    return NULL;
}

/* async_pairs PAIRS THREADS: each thread makes pairs of cuMemAlloc and cuMemFreeAsync in its own
 * stream, whose work is not delayed. */
static void async_pairs(char **arguments) {
    pthread_t threads[64];
    long count = atol(arguments[1]);
    pairs_each = atol(arguments[0]);
    context = begin();
    free_block(alloc_block(4096));
    uint64_t before = sim_calls("*");
    for (long i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, free_in_stream, NULL);
    for (long i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    double calls = (double)(sim_calls("*") - before) / (double)(pairs_each * count);
    printf("calls=%.2f held_mib=%.0f\n", calls, held_mib());
}

/* contexts COUNT PAIRS: one thread makes pairs in COUNT contexts of a device, one pair in each
 * context in turn. */
static void contexts(char **arguments) {
    CUcontext all[64];
    long count = atol(arguments[0]), pairs = atol(arguments[1]);
    all[0] = begin();
    for (long i = 1; i < count; i++)
        CHECK(cuCtxCreate_v4(&all[i], NULL, 0, 0));
    uint64_t before = 0;
    for (long i = 0; i < 2 * pairs; i++) {
        before = i == pairs ? sim_calls("*") : before;
        CHECK(cuCtxSetCurrent(all[i % count]));
        free_block(alloc_block(64 * KIB));
    }
    printf("calls=%.2f held_mib=%.0f\n", (double)(sim_calls("*") - before) / (double)pairs,
           held_mib());
}

static int slow(struct sim_launch *launch, void **params) {
    (void)params;
    return launch->progress++ < 20 ? SIM_MORE : SIM_DONE;
}

/* second_device PAIRS MIB: uses another device once. Then uses blocks of MIB MiB, which thread
 * caches hold, in eight streams in turn. */
static void second_device(char **arguments) {
    static const size_t sizes[] = {8};
    CUdeviceptr kept[8] = {0};
    CUcontext mine = begin(), other;
    CUstream streams[8];
    struct kernels k;
    CUfunction function;
    long pairs = atol(arguments[0]);
    size_t bytes = (size_t)atol(arguments[1]) * MIB;
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK(cuCtxSetCurrent(other));
    free_block(alloc_block(4096));
    CHECK(cuCtxSetCurrent(mine));
    kernels_load(&k);
    sim_register_kernel("slow", slow, 1, sizes);
    CHECK(cuModuleGetFunction(&function, k.module, "slow"));
    for (unsigned i = 0; i < 8; i++)
        CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    uint64_t waits = sim_calls("cuEventSynchronize"), barriers = sim_calls("cuCtxWaitEvent");
    for (long i = 0; i < pairs; i++) {
        CUdeviceptr p = alloc_block(bytes), last = kept[i % 8];
        void *params[] = {&p};
        CHECK(launch(function, streams[i % 8], 1, params));
        kept[i % 8] = p;
        if (last)
            free_block(last);
    }
    printf("waits=%lu barriers=%lu held_mib=%.0f\n", sim_calls("cuEventSynchronize") - waits,
           sim_calls("cuCtxWaitEvent") - barriers, held_mib());
}

static const struct row rows[] = {
    {"second_device", second_device},
    {"pinned_unasked", pinned_unasked},
    {"async_pairs", async_pairs},
    {"contexts", contexts},
    {NULL, NULL},
};

int main(int argc, char **argv) {
    return run_row(rows, argc, argv);
}
