/*
 * limit_driver_pools CASE: prints the driver's answers and the reserve of the driver's own pools,
 * as "CASE: what: values". limit_driver_pools.py compares the lines with the native ones, with the
 * limit, and with the report.
 */
#include "diff.h"
#include "gpucache.h"

#include <pthread.h>
#include <stdatomic.h>

static CUdevice device;
static CUmemoryPool standard;
static const char *name;

static uint64_t figure(CUmemoryPool pool, CUmemPool_attribute what) {
    cuuint64_t value = 0;
    CHECK(cuMemPoolGetAttribute(pool, what, &value));
    return value;
}

static uint64_t reserve(CUmemoryPool pool) {
    return figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static uint64_t graphs(void) {
    cuuint64_t value = 0;
    CHECK(cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value));
    return value;
}

static void keep_all(CUmemoryPool pool) {
    cuuint64_t most = UINT64_MAX;
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &most));
}

static CUmemoryPool new_pool(void) {
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CHECK(cuMemPoolCreate(&pool, &props));
    return pool;
}

static void take_and_free(CUmemoryPool pool, size_t bytes) {
    CUdeviceptr p;
    CHECK(cuMemAllocFromPoolAsync(&p, bytes, pool, 0));
    CHECK(cuMemFreeAsync(p, 0));
    CHECK(cuCtxSynchronize());
}

static void say(const char *what, uint64_t bytes) {
    line("%s: %s: %lu MiB", name, what, (unsigned long)(bytes / MIB));
}

/* ---- without a limit: lines for the comparison with the report ---- */

static void kept(void) {
    keep_all(standard);
    take_and_free(standard, 100 * MIB);
    say("reserve at the end", reserve(standard));
}

static void kept_by_two(void) {
    CUmemoryPool other = new_pool();
    CUdeviceptr p;
    keep_all(other);
    take_and_free(other, 100 * MIB);
    CHECK(cuMemAllocAsync(&p, 40 * MIB, 0));
    CHECK(cuStreamSynchronize(0));
    say("reserve at the end", reserve(standard) + reserve(other));
}

static void dropped(void) {
    CUdeviceptr p;
    CHECK(cuMemAllocAsync(&p, 100 * MIB, 0));
    CHECK(cuMemFreeAsync(p, 0));
    CHECK(cuStreamSynchronize(0));
    say("reserve at the end", reserve(standard));
}

/* Frees and waits while another stream is being captured. */
static void dropped_in_capture(void) {
    CUstream captured, other;
    CUgraph empty;
    CUdeviceptr p;
    CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAllocAsync(&p, 100 * MIB, other));
    CHECK(cuStreamSynchronize(other));
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemFreeAsync(p, other));
    CHECK(cuStreamSynchronize(other));
    CHECK(cuStreamEndCapture(captured, &empty));
    CHECK(cuStreamSynchronize(other));
    say("reserve at the end", reserve(standard));
}

static void trimmed(void) {
    keep_all(standard);
    take_and_free(standard, 100 * MIB);
    CHECK(cuMemPoolTrimTo(standard, 0));
    say("reserve at the end", reserve(standard));
}

/* Allocates from the device's current pool, before and after another pool was selected. */
static void allocate_around(CUresult (*select)(CUmemoryPool pool)) {
    CUmemoryPool pool = new_pool();
    CUdeviceptr p;
    keep_all(pool);
    CHECK(cuMemAllocAsync(&p, 10 * MIB, 0));
    CHECK(select(pool));
    CHECK(cuMemAllocAsync(&p, 100 * MIB, 0));
    CHECK(cuStreamSynchronize(0));
    say("reserve at the end", reserve(standard) + reserve(pool));
}

static CUresult select_for_device(CUmemoryPool pool) {
    return cuDeviceSetMemPool(device, pool);
}

static CUresult select_for_location(CUmemoryPool pool) {
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    return cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

static void set(void) {
    allocate_around(select_for_device);
}

static void set_location(void) {
    allocate_around(select_for_location);
}

/* Memory of a context that ended is no longer live; its pool is as the driver says. */
static void reset(void) {
    CUdeviceptr p;
    keep_all(standard);
    take_and_free(standard, 100 * MIB);
    CHECK(cuDevicePrimaryCtxReset(device));
    begin();
    CHECK(cuDeviceGetDefaultMemPool(&standard, device));
    CHECK(cuMemAllocAsync(&p, 10 * MIB, 0));
    CHECK(cuStreamSynchronize(0));
    say("reserve at the end", reserve(standard));
}

static void destroyed(void) {
    CUmemoryPool pool = new_pool();
    CUdeviceptr p;
    keep_all(pool);
    CHECK(cuDeviceSetMemPool(device, pool));
    CHECK(cuMemAllocAsync(&p, 100 * MIB, 0));
    CHECK(cuMemFreeAsync(p, 0));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemPoolDestroy(pool));
    CHECK(cuMemAllocAsync(&p, 10 * MIB, 0)); /* from the default pool again */
    CHECK(cuStreamSynchronize(0));
    say("reserve at the end", reserve(standard));
}

static CUgraph graph_of_node(size_t bytes) {
    CUgraph graph;
    CUgraphNode made, freed;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = bytes};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&made, graph, NULL, 0, &params));
    CHECK(cuGraphAddMemFreeNode(&freed, graph, &made, 1, params.dptr));
    return graph;
}

/* As graph_of_node(), with the call that adds a node of any kind. */
static CUgraph graph_of_any_node(size_t bytes) {
    CUgraph graph;
    CUgraphNode made, freed;
    CUgraphNodeParams params = {
        .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        .alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
                  .bytesize = bytes}};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddNode_v2(&made, graph, NULL, NULL, 0, &params));
    CHECK(cuGraphAddMemFreeNode(&freed, graph, &made, 1, params.alloc.dptr));
    return graph;
}

static CUgraph graph_of_capture(size_t bytes) {
    CUgraph graph;
    CUstream stream;
    CUdeviceptr p;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemAllocAsync(&p, bytes, stream));
    CHECK(cuMemFreeAsync(p, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static void run_graph(CUgraph graph) {
    CUgraphExec exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, 0));
    CHECK(cuStreamSynchronize(0));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuCtxSynchronize());
}

static void graph(void) {
    run_graph(graph_of_node(50 * MIB));
    say("reserve at the end", graphs() + reserve(standard));
}

static void any_node(void) {
    run_graph(graph_of_any_node(50 * MIB));
    say("reserve at the end", graphs() + reserve(standard));
}

static void captured(void) {
    run_graph(graph_of_capture(50 * MIB));
    say("reserve at the end", graphs() + reserve(standard));
}

/* Needs two devices. A node of the second one is captured while the first one is current. */
static void captured_elsewhere(void) {
    CUcontext first, second;
    CUstream stream;
    CUgraph captured_graph;
    CUgraphExec exec;
    CUdeviceptr p = 0;
    CHECK(cuCtxGetCurrent(&first));
    CHECK(cuDevicePrimaryCtxRetain(&second, 1));
    CHECK(cuCtxSetCurrent(second));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuCtxSetCurrent(first));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemAllocAsync(&p, 192 * MIB, stream));
    CHECK(cuStreamEndCapture(stream, &captured_graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, captured_graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuCtxSetCurrent(second));
    CODES("captured_elsewhere: one more", cuMemAlloc(&p, 128 * MIB), cuMemAlloc(&p, 32 * MIB));
}

/* ---- no question of another thread about free memory invalidates a capture ---- */

static atomic_bool asked;

static void *ask_for_memory(void *context) {
    size_t free_bytes, total;
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 2000; i++)
        CHECK(cuMemGetInfo(&free_bytes, &total));
    atomic_store(&asked, true);
    return NULL;
}

static void captures(void) {
    pthread_t thread;
    CUcontext context;
    CUstream stream;
    CUgraph empty;
    unsigned broken = 0;
    take_and_free(standard, 40 * MIB);
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_create(&thread, NULL, ask_for_memory, context);
    while (!atomic_load(&asked)) {
        CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        broken += cuStreamEndCapture(stream, &empty) != CUDA_SUCCESS;
    }
    pthread_join(thread, NULL);
    line("captures: invalidated: %d", broken > 0);
}

/* ---- with a limit of 256 MiB: idle memory is released, and no more is taken ---- */

static void reserve_for_plain(void) {
    CUdeviceptr p = 0;
    keep_all(standard);
    take_and_free(standard, 200 * MIB);
    CODES("reserve_for_plain: alloc", cuMemAlloc(&p, 100 * MIB));
    line("reserve_for_plain: within: %d", reserve(standard) + 100 * MIB <= 256 * MIB);
    CHECK(cuMemFree(p));
}

static void reserve_for_another(void) {
    CUmemoryPool other = new_pool();
    CUdeviceptr p = 0;
    keep_all(other);
    take_and_free(other, 200 * MIB);
    CODES("reserve_for_another: alloc", cuMemAllocAsync(&p, 100 * MIB, 0));
    line("reserve_for_another: within: %d", reserve(standard) + reserve(other) <= 256 * MIB);
}

/* No more of the reserve is released than the request needs. */
static void reserve_kept(void) {
    CUmemoryPool other = new_pool();
    CUdeviceptr p = 0;
    keep_all(other);
    take_and_free(other, 224 * MIB);
    CODES("reserve_kept: alloc", cuMemAllocAsync(&p, 60 * MIB, 0));
    line("reserve_kept: within: %d, kept: %d", reserve(standard) + reserve(other) <= 256 * MIB,
         reserve(other) >= 128 * MIB);
}

static void reserve_of_graphs(void) {
    CUdeviceptr p = 0;
    run_graph(graph_of_node(200 * MIB));
    CODES("reserve_of_graphs: alloc", cuMemAlloc(&p, 100 * MIB));
    line("reserve_of_graphs: within: %d", graphs() + 100 * MIB <= 256 * MIB);
    CHECK(cuMemFree(p));
}

static void full(void) {
    static CUdeviceptr p[1024];
    unsigned count = 0;
    CUresult r = CUDA_SUCCESS;
    while (count < 1024 && (r = cuMemAllocAsync(&p[count], MIB, 0)) == CUDA_SUCCESS)
        count++;
    line("full: %u of 1 MiB, then %d; reserve within: %d", count, r,
         reserve(standard) <= 256 * MIB);
    CHECK(cuMemFreeAsync(p[7], 0));
    CODES("full: one freed, one more, one too many", cuMemAllocAsync(&p[7], MIB, 0),
          cuMemAllocAsync(&p[count], MIB, 0), cuMemAllocAsync(&p[count], 300 * MIB, 0));
    for (unsigned i = 0; i < count; i++)
        CHECK(cuMemFreeAsync(p[i], 0));
    CHECK(cuCtxSynchronize());
    CODES("full: after all were freed", cuMemAllocAsync(&p[0], 200 * MIB, 0),
          cuMemAlloc(&p[1], 100 * MIB), cuMemFreeAsync(p[0], 0), cuCtxSynchronize(),
          cuMemAlloc(&p[1], 100 * MIB));
}

/* The pool's reserve would serve the request, but exceeds a limit that was lowered. */
static void lowered(void) {
    CUdeviceptr p = 0, q = 0;
    keep_all(standard);
    CHECK(cuMemAllocAsync(&p, 40 * MIB, 0));
    if (gpucache_set_memory_limit && gpucache_set_memory_limit(0, 8 * MIB) != 0)
        line("lowered: the limit was not set");
    CODES("lowered: alloc", cuMemAllocAsync(&q, 4 * MIB, 0), q != 0);
    CODES("lowered: free, nothing else is live", cuMemFreeAsync(p, 0), cuCtxSynchronize(),
          cuMemPoolTrimTo(standard, 0), (int)(reserve(standard) / MIB),
          (int)(figure(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) / MIB));
}

static void *mixes(void *context) {
    uint64_t seed = (uint64_t)(uintptr_t)&context;
    CUstream stream;
    CUdeviceptr p[8] = {0};
    unsigned odd = 0;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < 400; i++) {
        CUdeviceptr *at = &p[pick(&seed, 8)];
        if (*at) {
            CHECK(cuMemFreeAsync(*at, stream));
            *at = 0;
        } else {
            CUresult r = cuMemAllocAsync(at, (1 + pick(&seed, 20)) * MIB, stream);
            odd += r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY;
            if (r != CUDA_SUCCESS)
                *at = 0;
        }
    }
    for (unsigned i = 0; i < 8; i++)
        CHECK(cuMemFreeAsync(p[i], stream));
    CHECK(cuStreamSynchronize(stream));
    return (void *)(uintptr_t)odd;
}

static void threads(void) {
    pthread_t thread[8];
    void *odd = NULL;
    unsigned all = 0;
    CUcontext context;
    CUdeviceptr p = 0;
    CHECK(cuCtxGetCurrent(&context));
    keep_all(standard);
    for (unsigned i = 0; i < 8; i++)
        pthread_create(&thread[i], NULL, mixes, context);
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(thread[i], &odd);
        all += (unsigned)(uintptr_t)odd;
    }
    line("threads: other codes %u, most that was reserved within: %d", all,
         figure(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) <= (256 + 4 * 32) * MIB);
    CODES("threads: all of it can be had", cuMemAllocAsync(&p, 224 * MIB, 0));
    CHECK(cuMemFreeAsync(p, 0));
    CHECK(cuCtxSynchronize());
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"kept", kept},
    {"kept_by_two", kept_by_two},
    {"dropped", dropped},
    {"dropped_in_capture", dropped_in_capture},
    {"trimmed", trimmed},
    {"set", set},
    {"set_location", set_location},
    {"reset", reset},
    {"destroyed", destroyed},
    {"graph", graph},
    {"any_node", any_node},
    {"captured", captured},
    {"captured_elsewhere", captured_elsewhere},
    {"captures", captures},
    {"reserve_for_plain", reserve_for_plain},
    {"reserve_for_another", reserve_for_another},
    {"reserve_kept", reserve_kept},
    {"reserve_of_graphs", reserve_of_graphs},
    {"full", full},
    {"lowered", lowered},
    {"threads", threads},
};

int main(int argc, char **argv) {
    for (unsigned i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        name = argv[1];
        begin();
        CHECK(cuDeviceGet(&device, 0));
        CHECK(cuDeviceGetDefaultMemPool(&standard, device));
        cases[i].run();
        return 0;
    }
    return 2;
}
