/*
 * facts_pools [section]: measures natively the reserve of the driver's own pools, the bytes of an
 * IPC handle, and the answers after the driver's end. Every section runs in a process of its own.
 */
#include "facts.cuh"

#include <cstdlib>

static const size_t mib = (size_t)1 << 20;

static CUmemoryPool new_pool(bool keeps) {
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemoryPool pool;
    cuuint64_t most = ~(cuuint64_t)0;
    CHECK(cuMemPoolCreate(&pool, &props));
    if (keeps)
        CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &most));
    return pool;
}

static size_t reserve(CUmemoryPool pool) {
    cuuint64_t value = 0;
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    return value;
}

static size_t graphs() {
    cuuint64_t value = 0;
    CHECK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value));
    return value;
}

static size_t device_free() {
    size_t free_bytes, total;
    CHECK(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

/* Measures the growth of a pool for an allocation. The limit charges bytes rounded up to 32 MiB. */
static void section_growth() {
    primary();
    warm();
    CUdeviceptr p, q;
    printf("  %12s %10s %14s %14s %16s\n", "bytes", "reserve", "device bytes", "rounded to 32",
           "1 KiB more");
    const size_t sizes[] = {1,           1024,      mib,      20 * mib,  32 * mib,  32 * mib + 1,
                            33 * mib,    64 * mib,  65 * mib, 100 * mib, 300 * mib, 1000 * mib,
                            1 * mib + 1, 4097 * mib};
    for (size_t bytes : sizes) {
        CUmemoryPool pool = new_pool(true);
        size_t before = device_free();
        CHECK(cuMemAllocFromPoolAsync(&p, bytes, pool, 0));
        CHECK(cuStreamSynchronize(0));
        size_t first = reserve(pool), took = before - device_free();
        CHECK(cuMemAllocFromPoolAsync(&q, 1024, pool, 0));
        printf("  %12zu %8zu M %12zu M %12zu M %14zd M\n", bytes, first / mib, took / mib,
               (bytes + 32 * mib - 1) / (32 * mib) * 32,
               (ssize_t)(reserve(pool) - first) / (ssize_t)mib);
        CHECK(cuMemFreeAsync(p, 0));
        CHECK(cuMemFreeAsync(q, 0));
        CHECK(cuCtxSynchronize());
        CHECK(cuMemPoolDestroy(pool));
    }
    /* random sizes: one allocation must not grow the pool by more than its own rounded bytes */
    CUmemoryPool pool = new_pool(true);
    CUdeviceptr live[64] = {};
    uint64_t seed = 7;
    size_t worst = 0, unsound = 0, refused_reuse = 0, used = 0, held[64] = {};
    for (int i = 0; i < 20000; i++) {
        unsigned at = (unsigned)(rng(&seed) % 64);
        if (live[at]) {
            CHECK(cuMemFreeAsync(live[at], 0));
            live[at] = 0;
            used -= held[at];
            continue;
        }
        size_t bytes = 1 + rng(&seed) % ((rng(&seed) % 4 ? 2 : 80) * mib), before = reserve(pool);
        CHECK(cuMemAllocFromPoolAsync(&live[at], bytes, pool, 0));
        size_t grown = reserve(pool) - before,
               claim = (bytes + 32 * mib - 1) / (32 * mib) * (32 * mib);
        unsound += grown > claim;
        worst = std::max(worst, grown > claim ? grown - claim : 0);
        refused_reuse += grown > 0 && before - used >= bytes;
        used += held[at] = bytes;
    }
    printf(
        "  20000 random steps: growth above the claim %zu times, by %zu MiB at most; grew although "
        "it kept enough %zu times\n",
        unsound, worst / mib, refused_reuse);
}

static void section_trim() {
    primary();
    warm();
    cudaStream_t s = new_stream();
    CUmemoryPool pool = new_pool(true);
    CUdeviceptr p[8];
    auto fill = [&](int n, size_t bytes) {
        for (int i = 0; i < n; i++)
            CHECK(cuMemAllocFromPoolAsync(&p[i], bytes, pool, (CUstream)s));
        for (int i = 0; i < n; i++)
            CHECK(cuMemFreeAsync(p[i], (CUstream)s));
    };
    fill(4, 32 * mib);
    CHECK(cuCtxSynchronize());
    printf("  4 of 32 MiB freed: reserve %zu,", reserve(pool) / mib);
    for (size_t keep : {100, 96, 64, 0}) {
        CHECK(cuMemPoolTrimTo(pool, keep * mib));
        printf(" trimmed to %zu: %zu", keep, reserve(pool) / mib);
    }
    fill(1, 200 * mib);
    CHECK(cuCtxSynchronize());
    printf("\n  one of 200 MiB freed: reserve %zu,", reserve(pool) / mib);
    for (size_t keep : {192, 96, 32, 0}) {
        CHECK(cuMemPoolTrimTo(pool, keep * mib));
        printf(" trimmed to %zu: %zu", keep, reserve(pool) / mib);
    }
    fill(1, 100 * mib);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemAllocFromPoolAsync(&p[0], 100 * mib, pool, (CUstream)s));
    spin_ms(s, 50);
    CHECK(cuMemFreeAsync(p[0], (CUstream)s));
    double ms = took_ms([&] { CHECK(cuMemPoolTrimTo(pool, 0)); });
    printf("\n  freed behind 50 ms of work: trimming takes %.2f ms, reserve %zu;", ms,
           reserve(pool) / mib);
    while (cudaStreamQuery(s) == cudaErrorNotReady)
        ;
    CHECK(cuMemPoolTrimTo(pool, 0));
    printf(" after a query said it is done %zu;", reserve(pool) / mib);
    CHECK(cuStreamSynchronize((CUstream)s));
    CHECK(cuMemPoolTrimTo(pool, 0));
    printf(" after synchronising %zu\n", reserve(pool) / mib);
    spin_ms(s, 50);
    fill(1, 1000 * mib);
    CHECK(cuCtxSynchronize());
    spin_ms(s, 50);
    ms = took_ms([&] { CHECK(cuMemPoolTrimTo(pool, 0)); });
    printf("  1000 MiB trimmed while a stream works 50 ms: %.2f ms\n", ms);
    CHECK(cuCtxSynchronize());

    CUmemoryPool plain = new_pool(false);
    CHECK(cuMemAllocFromPoolAsync(&p[0], 100 * mib, plain, (CUstream)s));
    CHECK(cuMemFreeAsync(p[0], (CUstream)s));
    size_t before = reserve(plain);
    CHECK(cuStreamSynchronize((CUstream)s));
    printf("  threshold 0: reserve %zu, after cuStreamSynchronize %zu\n", before / mib,
           reserve(plain) / mib);

    CHECK(cuMemAllocFromPoolAsync(&p[0], 100 * mib, pool, (CUstream)s));
    printf("  reading the reserve %.0f ns,", mean_ns(100000, [&] { reserve(pool); }));
    printf(" that of graphs %.0f ns,", mean_ns(100000, [&] { graphs(); }));
    printf(" trimming in vain %.0f ns,", mean_ns(10000, [&] { CHECK(cuMemPoolTrimTo(pool, 0)); }));
    CUmemoryPool current;
    printf(" cuDeviceGetMemPool %.0f ns\n",
           mean_ns(100000, [&] { CHECK(cuDeviceGetMemPool(&current, 0)); }));
    printf("  cuStreamSynchronize of an idle stream %.0f ns\n",
           mean_ns(100000, [&] { CHECK(cuStreamSynchronize((CUstream)s)); }));

    for (auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
        cuuint64_t value;
        CUgraph graph = nullptr;
        CHECK(cuStreamBeginCapture((CUstream)s, mode));
        codes(mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? "  in a global capture"
                                                    : "  in a relaxed one",
              {});
        codes(": reserve %d, graphs' %d, trim %d, end %d\n",
              {(int)cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value),
               (int)cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value),
               (int)cuMemPoolTrimTo(pool, 0), (int)cuStreamEndCapture((CUstream)s, &graph)});
    }
}

/* Tests whether pools outlive the context. A crash here is an answer too. */
static void section_reset() {
    primary();
    CUmemoryPool standard, again, own = new_pool(true);
    CUdeviceptr p, q, r;
    cuuint64_t value = 0;
    CHECK(cuDeviceGetDefaultMemPool(&standard, 0));
    CHECK(cuMemAllocAsync(&p, 10 * mib, 0));
    CHECK(cuMemAllocFromPoolAsync(&q, 100 * mib, own, 0));
    CHECK(cuCtxSynchronize());
    CHECK(cuDevicePrimaryCtxReset(0));
    CUcontext ctx;
    CHECK(cuDevicePrimaryCtxRetain(&ctx, 0));
    CHECK(cuCtxSetCurrent(ctx));
    codes("  after a reset: default pool %d", {(int)cuDeviceGetDefaultMemPool(&again, 0)});
    printf(" has ");
    same(again == standard);
    codes(" handle, its reserve %d",
          {(int)cuMemPoolGetAttribute(again, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value)});
    printf(" %zu MiB", (size_t)value / mib);
    codes(", freeing its block %d", {(int)cuMemFree(p)});
    codes(", allocating %d\n", {(int)cuMemAllocAsync(&r, 10 * mib, 0)});
    fflush(stdout);
    codes("  a pool of one's own: reserve %d",
          {(int)cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value)});
    printf(" %zu MiB", (size_t)value / mib);
    codes(", freeing its block %d, allocating %d\n",
          {(int)cuMemFree(q), (int)cuMemAllocFromPoolAsync(&r, 10 * mib, own, 0)});
}

static void section_graphs() {
    primary();
    warm();
    cudaStream_t s = new_stream();
    CUgraph graph;
    CUgraphNode made, freed;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = 50 * mib;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&made, graph, nullptr, 0, &params));
    CHECK(cuGraphAddMemFreeNode(&freed, graph, &made, 1, params.dptr));
    printf("  graphs' reserve: node made %zu,", graphs() / mib);
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    printf(" instantiated %zu,", graphs() / mib);
    CHECK(cuGraphLaunch(exec, (CUstream)s));
    printf(" launched %zu,", graphs() / mib);
    CHECK(cuStreamSynchronize((CUstream)s));
    printf(" synchronised %zu,", graphs() / mib);
    CHECK(cuDeviceGraphMemTrim(0));
    printf(" trimmed %zu,", graphs() / mib);
    CHECK(cuGraphLaunch(exec, (CUstream)s));
    CHECK(cuStreamSynchronize((CUstream)s));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuCtxSynchronize());
    printf(" destroyed %zu,", graphs() / mib);
    spin_ms(s, 50);
    double ms = took_ms([&] { CHECK(cuDeviceGraphMemTrim(0)); });
    printf(" trimmed %zu (%.2f ms during 50 ms of work)\n", graphs() / mib, ms);
}

/* Finds the words of a handle that are zero, and those that the driver checks in an open. */
static void section_ipc() {
    int down[2], up[2];
    enum { tries = 4 };
    if (pipe(down) || pipe(up))
        DIE("pipe");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        CUipcMemHandle handle;
        primary();
        for (int i = 0; i < tries; i++) {
            if (read(down[0], &handle, sizeof handle) != sizeof handle)
                _exit(1);
            CUdeviceptr p = 0;
            uint32_t value = 0;
            int answer[2] = {
                (int)cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), 0};
            if (answer[0] == 0) {
                answer[1] = cuMemcpyDtoH(&value, p, 4) == CUDA_SUCCESS && value == 0x600d;
                CHECK(cuIpcCloseMemHandle(p));
            }
            if (write(up[1], answer, sizeof answer) != sizeof answer)
                _exit(1);
        }
        _exit(0);
    }
    primary();
    CUdeviceptr p;
    unsigned zero_in_all = 0xff;
    uint64_t words[8];
    CUipcMemHandle handle;
    for (size_t bytes : {(size_t)512, mib, 2 * mib, 6 * mib, 100 * mib, 3000 * mib}) {
        CHECK(cuMemAlloc(&p, bytes));
        CHECK(cuIpcGetMemHandle(&handle, p));
        memcpy(words, &handle, sizeof words);
        printf("  %10zu bytes: zero words", bytes);
        for (unsigned i = 0; i < 8; i++) {
            if (words[i] == 0)
                printf(" %u", i);
            else
                zero_in_all &= ~(1u << i);
        }
        putchar('\n');
    }
    CHECK(cuMemsetD32(p, 0x600d, 4));
    CHECK(cuCtxSynchronize());
    int place = 6;
    while (place >= 0 && !(zero_in_all & 1u << place))
        place--;
    static const char *const what[tries] = {"as it is", "last word set as for a block at the start",
                                            "a zero word set", "all inverted, as for other blocks"};
    for (int i = 0; i < tries; i++) {
        uint64_t other[8];
        memcpy(other, words, sizeof other);
        if (i == 1)
            other[7] = (uint64_t)0x6765 << 48 | 5000;
        if (i == 2 && place >= 0)
            other[place] = 5000;
        if (i == 3) {
            for (unsigned w = 0; w < 7; w++)
                other[w] = ~other[w];
            if (place >= 0)
                other[place] = 5000;
            other[7] = (uint64_t)0x6764 << 48 | 77;
        }
        int answer[2];
        if (write(down[1], other, sizeof other) != sizeof other ||
            read(up[0], answer, sizeof answer) != sizeof answer)
            DIE("the importer is gone");
        printf("  opened %s: %d%s\n", what[i], answer[0],
               answer[0]   ? ""
               : answer[1] ? ", the right bytes"
                           : ", OTHER BYTES");
    }
    int status;
    waitpid(pid, &status, 0);
}

/* Prints codes after the driver's own exit handler: which call shows the end, and a free's code. */
static CUdeviceptr left;
static CUmemoryPool left_pool;

static void when_it_is_over() {
    CUdevice device;
    CUcontext ctx;
    cuuint64_t value;
    int least, greatest;
    codes("  after the driver's end: cuCtxGetDevice %d, cuCtxGetCurrent %d, priorities %d, reserve "
          "%d,",
          {(int)cuCtxGetDevice(&device), (int)cuCtxGetCurrent(&ctx),
           (int)cuCtxGetStreamPriorityRange(&least, &greatest),
           (int)cuMemPoolGetAttribute(left_pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value)});
    codes(" free %d, free of NULL %d, of nonsense %d, alloc %d\n",
          {(int)cuMemFree(left), (int)cuMemFree(0), (int)cuMemFree(0x1234500),
           (int)cuMemAlloc(&left, 100)});
    fflush(stdout);
}

static void before_it_is_over() {
    CUdevice device;
    codes("  before it: cuCtxGetDevice %d\n", {(int)cuCtxGetDevice(&device)});
}

static void section_end() {
    atexit(when_it_is_over);
    primary();
    atexit(before_it_is_over);
    CHECK(cuMemAlloc(&left, 4096));
    CHECK(cuDeviceGetDefaultMemPool(&left_pool, 0));
}

/* Measures the calls around which a hook puts one call and one comparison. */
static void section_calls() {
    primary();
    warm();
    cudaStream_t s = new_stream();
    CUevent event = new_event();
    CUdeviceptr p;
    uint32_t word;
    void *host;
    CHECK(cuMemAlloc(&p, mib));
    CHECK(cuMemAllocHost(&host, mib));
    CHECK(cuEventRecord(event, (CUstream)s));
    CHECK(cuCtxSynchronize());
    printf("  ns each: cuEventQuery %.0f, cuStreamQuery %.0f,",
           mean_ns(1000000, [&] { CHECK(cuEventQuery(event)); }),
           mean_ns(1000000, [&] { CHECK(cuStreamQuery((CUstream)s)); }));
    printf(" cuMemcpyDtoH 4 B %.0f,", mean_ns(20000, [&] { CHECK(cuMemcpyDtoH(&word, p, 4)); }));
    printf(" cuMemcpyHtoDAsync pinned 4 B %.0f,",
           mean_ns(20000, [&] { CHECK(cuMemcpyHtoDAsync(p, host, 4, (CUstream)s)); }));
    CHECK(cuCtxSynchronize());
    printf(" cuMemsetD32Async %.0f\n",
           mean_ns(20000, [&] { CHECK(cuMemsetD32Async(p, 0, 4, (CUstream)s)); }));
    CHECK(cuCtxSynchronize());
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } sections[] = {{"growth", section_growth}, {"trim", section_trim}, {"reset", section_reset},
                    {"graphs", section_graphs}, {"ipc", section_ipc},   {"end", section_end},
                    {"calls", section_calls}};
    return run_cases(argc, argv, sections);
}
