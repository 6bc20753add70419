/*
 * facts_release [section]: measures natively how memory returns to the driver while the device is
 * busy, and how long the end of a context delays other threads. Every section runs in a process of
 * its own.
 */
#include "facts.cuh"

#include <atomic>

static const size_t mib = (size_t)1 << 20;

static size_t free_now() {
    size_t free_bytes, total;
    CHECK(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

static long mib_since(size_t before) {
    return (long)(free_now() >> 20) - (long)(before >> 20);
}

/* Allocates blocks of `bytes` until one is refused. */
static std::vector<CUdeviceptr> fill_device(size_t bytes) {
    std::vector<CUdeviceptr> held;
    for (size_t each : {(size_t)4096 * mib, bytes, bytes / 2, 2 * mib})
        for (CUdeviceptr p; cuMemAlloc(&p, each) == CUDA_SUCCESS;)
            held.push_back(p);
    return held;
}

/* Requests `bytes` until they are served. Returns the time that it took; -1: more than a second. */
static double until_served_ms(size_t bytes, int *first) {
    CUdeviceptr p;
    double t = now_s();
    *first = cuMemAlloc(&p, bytes);
    for (int r = *first; r != CUDA_SUCCESS; r = cuMemAlloc(&p, bytes))
        if (now_s() - t > 1)
            return -1;
    double ms = (now_s() - t) * 1e3;
    CHECK(cuMemFree(p)); /* this free waits */
    return ms;
}

/* One stream is idle, another one is busy. Memory of cuMemAlloc is freed in the idle stream. */
static void section_async() {
    primary();
    warm();
    cudaStream_t busy = new_stream(), ours = new_stream();
    for (size_t bytes : {2 * mib, 64 * mib, 1024 * mib}) {
        for (int ms : {0, 200}) {
            CUdeviceptr p;
            CHECK(cuMemAlloc(&p, bytes));
            size_t before = free_now();
            if (ms)
                spin_ms(busy, ms);
            int code = -1;
            double call = took_ms([&] { code = cuMemFreeAsync(p, (CUstream)ours); });
            int query = cuStreamQuery((CUstream)ours);
            long at_once = mib_since(before);
            double wait = took_ms([&] { CHECK(cuStreamSynchronize((CUstream)ours)); });
            long after = mib_since(before);
            int still = cuStreamQuery((CUstream)busy);
            printf("  %5zu MiB, other stream busy %3d ms: cuMemFreeAsync %d in %.3f ms, stream %d, "
                   "%ld MiB free at "
                   "once; stream done after %.3f ms, %ld MiB free, other stream %d",
                   bytes / mib, ms, code, call, query, at_once, wait, after, still);
            CHECK(cuCtxSynchronize());
            printf("; all done, %ld MiB free\n", mib_since(before));
        }
    }
}

/* Does the same on a full device. Measures when the freed memory can be allocated again. */
static void section_async_brim() {
    primary();
    warm();
    cudaStream_t busy = new_stream(), ours = new_stream();
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, 1024 * mib));
    auto held = fill_device(1024 * mib);
    for (int how = 0; how < 4; how++) {
        spin_ms(busy, 300);
        int first = -1, code = cuMemFreeAsync(p, (CUstream)ours);
        CUmemoryPool pool;
        CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
        if (how == 1)
            CHECK(cuStreamSynchronize((CUstream)ours));
        if (how == 2)
            CHECK(cuMemPoolTrimTo(pool, 0));
        if (how == 3) {
            CHECK(cuStreamSynchronize((CUstream)ours));
            CHECK(cuMemPoolTrimTo(pool, 0));
        }
        double ms = until_served_ms(1024 * mib, &first);
        static const char *const names[] = {"nothing else", "own stream waited for", "pool trimmed",
                                            "waited and trimmed"};
        printf("  full device, 300 ms kernel, %s: free %d, cuMemAlloc first %d, served after %.1f "
               "ms, busy stream %d\n",
               names[how], code, first, ms, (int)cuStreamQuery((CUstream)busy));
        CHECK(cuCtxSynchronize());
        CHECK(cuMemAlloc(&p, 1024 * mib));
    }
}

/* A kernel waits for the next launch of the same thread. Memory is released between the two. */
static void section_async_hang() {
    primary();
    warm();
    cudaStream_t a = new_stream(), b = new_stream(), ours = new_stream();
    int *flag, *gave_up;
    CHECK(cudaMallocManaged(&flag, 4));
    CHECK(cudaMallocManaged(&gave_up, 4));
    *flag = *gave_up = 0;
    set_flag<<<1, 1, 0, b>>>(flag,
                             0); /* loads the kernel now, because loading waits for the device */
    spin_until<<<1, 1, 0, a>>>(flag, 0, gave_up, 3);
    CHECK(cuCtxSynchronize());
    CUdeviceptr p[40];
    for (auto &x : p)
        CHECK(cuMemAlloc(&x, 64 * mib));
    CHECK(cuCtxSynchronize());
    spin_until<<<1, 1, 0, a>>>(flag, 1, gave_up, 3);
    double t = now_s(), free_ms = 0;
    for (auto &x : p)
        free_ms += took_ms([&] { CHECK(cuMemFreeAsync(x, (CUstream)ours)); });
    CHECK(cuStreamSynchronize((CUstream)ours));
    double waited = (now_s() - t) * 1e3;
    set_flag<<<1, 1, 0, b>>>(flag, 1);
    CHECK(cuCtxSynchronize());
    printf("  40 frees of 64 MiB between a kernel that spins and the one that ends it: %.3f ms, "
           "with the own stream "
           "waited for %.3f ms; kernels that gave up: %d\n",
           free_ms, waited, *gave_up);
}

/* Runs as many busy streams as the hardware may have queues, and more. Tests whether another stream
 * waits behind one of them. */
static void section_async_crowd() {
    primary();
    warm();
    for (int count : {1, 8, 32, 128, 300}) {
        std::vector<cudaStream_t> busy;
        for (int i = 0; i < count; i++) {
            busy.push_back(new_stream());
            spin_ms(busy.back(), 0);
        }
        int least, greatest;
        CHECK(cuCtxGetStreamPriorityRange(&least, &greatest));
        for (int priority : {least, greatest}) {
            CUstream ours;
            CHECK(cuStreamCreateWithPriority(&ours, CU_STREAM_NON_BLOCKING, priority));
            CUdeviceptr p;
            CHECK(cuMemAlloc(&p, 64 * mib));
            CHECK(cuCtxSynchronize());
            for (auto s : busy)
                for (int i = 0; i < 3; i++)
                    spin_ms(s, 50);
            double t = now_s();
            CHECK(cuMemFreeAsync(p, ours));
            while (cuStreamQuery(ours) == CUDA_ERROR_NOT_READY && now_s() - t < 5)
                ;
            double ms = (now_s() - t) * 1e3;
            int others = 0;
            for (auto s : busy)
                others += cudaStreamQuery(s) == cudaErrorNotReady;
            printf("  %3d busy streams, ours of priority %d: back after %.3f ms, %d of theirs "
                   "still busy\n",
                   count, priority, ms, others);
            CHECK(cuCtxSynchronize());
        }
        for (auto s : busy)
            CHECK(cudaStreamDestroy(s));
    }
}

/* The driver's default pool keeps all memory. Tests whether it keeps this memory too. */
static void section_async_threshold() {
    primary();
    warm();
    cudaStream_t ours = new_stream();
    CUmemoryPool pool;
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    cuuint64_t all = ~0ull, reserved = 0;
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, 1024 * mib));
    size_t before = free_now();
    CHECK(cuMemFreeAsync(p, (CUstream)ours));
    CHECK(cuStreamSynchronize((CUstream)ours));
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    printf("  default pool keeps all: %ld MiB free after the free, %llu MiB in the pool\n",
           mib_since(before), (unsigned long long)(reserved >> 20));
    CHECK(cuMemAlloc(&p, 1024 * mib));
    before = free_now();
    CUcontext none = nullptr, was;
    CHECK(cuCtxPopCurrent(&was));
    int r = cuMemFreeAsync(p, (CUstream)ours);
    CHECK(cuCtxSetCurrent(was));
    CHECK(cuStreamSynchronize((CUstream)ours));
    printf("  without a current context (%p): cuMemFreeAsync %d, %ld MiB free\n", (void *)none, r,
           mib_since(before));
}

/* Another thread makes calls while a primary context is being reset. */
static void section_asked_at_the_end() {
    CHECK(cuInit(0));
    CUcontext primary_ctx, mine;
    CHECK(cuDevicePrimaryCtxRetain(&primary_ctx, 0));
    CHECK(cuCtxCreate_v2(&mine, 0, 0));
    CHECK(cuCtxSetCurrent(primary_ctx));
    warm();
    spin_ms(new_stream(), 300);
    CHECK(cuCtxSetCurrent(nullptr));
    double ended = 0;
    std::thread ender([&] { ended = took_ms([&] { CHECK(cuDevicePrimaryCtxReset(0)); }); });
    usleep(30000);
    unsigned long long id;
    int r = -1;
    double other = took_ms([&] { CHECK(cuCtxGetId(mine, &id)); });
    double own = took_ms([&] { r = cuCtxGetId(primary_ctx, &id); });
    double event = -1;
    CHECK(cuCtxSetCurrent(mine));
    CUevent e;
    event = took_ms([&] { CHECK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING)); });
    CUcontext again;
    double retain = took_ms([&] { CHECK(cuDevicePrimaryCtxRetain(&again, 0)); });
    ender.join();
    printf("  reset took %.0f ms; during it cuCtxGetId of another context %.3f ms, of that one %d "
           "in %.3f ms, cuEventCreate "
           "in another %.3f ms, cuDevicePrimaryCtxRetain %.1f ms\n",
           ended, other, r, own, event, retain);
}

/* Measures another thread's launches while memory returns to the driver. */
static void section_async_threads() {
    primary();
    CUcontext ctx;
    CHECK(cuCtxGetCurrent(&ctx));
    warm();
    cudaStream_t busy = new_stream(), ours = new_stream();
    for (int how = 0; how < 3; how++) {
        std::vector<CUdeviceptr> p(20);
        for (auto &x : p)
            CHECK(cuMemAlloc(&x, 256 * mib));
        std::atomic<bool> stop{false};
        std::vector<double> launches;
        std::thread launcher([&] {
            CHECK(cuCtxSetCurrent(ctx));
            cudaStream_t s = new_stream();
            while (!stop) {
                launches.push_back(took_ms([&] { spin_ms(s, 0); }) * 1e3);
                usleep(20);
            }
        });
        usleep(20000);
        spin_ms(busy, 300);
        std::vector<double> frees;
        for (auto &x : p)
            frees.push_back(took_ms([&] {
                                if (how == 1)
                                    CHECK(cuMemFreeAsync(x, (CUstream)ours));
                                if (how == 2)
                                    CHECK(cuMemFree(x));
                            }) *
                            1e3);
        usleep(20000);
        stop = true;
        launcher.join();
        CHECK(cuCtxSynchronize());
        printf("  [%s]\n", how == 0 ? "nothing freed" : how == 1 ? "cuMemFreeAsync" : "cuMemFree");
        quantiles("another thread's launch", launches, "us");
        quantiles("the free itself", frees, "us");
        if (how == 0)
            for (auto &x : p)
                CHECK(cuMemFree(x));
    }
}

/* What an ending thread did last in its per-thread stream, while kernels of that stream may run. */
enum last_call { NOTHING, STREAM_QUERY, STREAM_WAIT, FREE_THAT_WAITS };
static const char *const last_calls[] = {"no call", "cuStreamQuery", "cuStreamSynchronize",
                                         "cuMemFree"};

static void launch_and_end(CUcontext context, last_call last) {
    CHECK(cuCtxSetCurrent(context));
    for (int i = 0; i < 40; i++)
        spin_ms(cudaStreamPerThread, 0);
    CUdeviceptr p;
    if (last == STREAM_QUERY)
        (void)cuStreamQuery(CU_STREAM_PER_THREAD);
    if (last == STREAM_WAIT)
        CHECK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    if (last == FREE_THAT_WAITS) {
        CHECK(cuMemAlloc(&p, 6000));
        CHECK(cuMemFree(p));
    }
}

/* Frees 2 MiB in a stream, and then starts and ends 40 threads, four at a time. */
static void free_and_end_threads(bool in_legacy, last_call last) {
    CUcontext context = primary();
    warm();
    CUstream stream = in_legacy ? CU_STREAM_LEGACY : (CUstream)new_stream();
    CUdeviceptr p;
    CHECK(cuMemAllocAsync(&p, 2 * mib, stream));
    CHECK(cuMemFreeAsync(p, stream));
    CHECK(cuCtxSynchronize());
    std::thread threads[4];
    double ms = took_ms([&] {
        for (unsigned i = 0; i < 44; i++) {
            if (i >= 4)
                threads[i % 4].join();
            if (i < 40)
                threads[i % 4] = std::thread(launch_and_end, context, last);
        }
        CHECK(cuCtxSynchronize());
    });
    printf("  ended after %.1f ms\n", ms);
}

/*
 * Tests whether threads end while kernels of their per-thread stream run, after memory was freed in
 * the legacy default stream or in another one. On an H100 with the driver of CUDA 13.0 a thread
 * that ends this way after a free in the legacy stream never ends. Each case runs in a process of
 * its own, which is killed after 2 s.
 */
static void section_ending_threads() {
    for (bool in_legacy : {false, true}) {
        for (last_call last : {NOTHING, STREAM_QUERY, STREAM_WAIT, FREE_THAT_WAITS}) {
            printf("  memory freed in %s stream, threads end after %s:",
                   in_legacy ? "the legacy" : "a created", last_calls[last]);
            fflush(stdout);
            pid_t pid = fork(); /* the parent has made no CUDA call before */
            if (pid == 0) {
                alarm(2);
                free_and_end_threads(in_legacy, last);
                fflush(stdout);
                _exit(0);
            }
            int status;
            waitpid(pid, &status, 0);
            if (WIFSIGNALED(status))
                printf("  not after 2 s (signal %d)\n", WTERMSIG(status));
        }
    }
}

/* Measures whether the trims of the driver's pools wait for work that uses none of the memory. */
static void section_trim_waits() {
    primary();
    warm();
    cudaStream_t busy = new_stream(), ours = new_stream();
    CUmemoryPool pool;
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    cuuint64_t keep = UINT64_MAX;
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    for (int in_busy_stream : {0, 1}) {
        CUstream s = (CUstream)(in_busy_stream ? busy : ours);
        CUdeviceptr p;
        CHECK(cuMemAllocAsync(&p, 256 * mib, s));
        CHECK(cuStreamSynchronize(s));
        size_t before = free_now();
        spin_ms(busy, 200);
        CHECK(cuMemFreeAsync(p, s));
        if (!in_busy_stream)
            CHECK(cuStreamSynchronize(s));
        double trim = took_ms([&] { CHECK(cuMemPoolTrimTo(pool, 0)); });
        double graph = took_ms([&] { CHECK(cuDeviceGraphMemTrim(0)); });
        printf("  256 MiB freed in %s stream, 200 ms kernel: trim %.3f ms, %ld MiB free, trim of "
               "graphs %.3f ms, busy stream %d\n",
               in_busy_stream ? "the busy" : "an idle", trim, mib_since(before), graph,
               (int)cuStreamQuery((CUstream)busy));
        CHECK(cuCtxSynchronize());
    }
}

/* Tests calls during captures of another thread and of this one, in relaxed mode. */
static void section_async_capture() {
    primary();
    warm();
    cudaStream_t s = new_stream(), ours = new_stream();
    for (auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                      CU_STREAM_CAPTURE_MODE_RELAXED}) {
        CUdeviceptr p;
        CHECK(cuMemAlloc(&p, 64 * mib));
        CHECK(cuStreamBeginCapture((CUstream)s, mode));
        CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
        CHECK(cuThreadExchangeStreamCaptureMode(&relaxed));
        int freed = cuMemFreeAsync(p, (CUstream)ours), waited = cuStreamSynchronize((CUstream)ours);
        CHECK(cuThreadExchangeStreamCaptureMode(&relaxed));
        CUgraph graph;
        int ended = cuStreamEndCapture((CUstream)s, &graph);
        printf(
            "  capture of mode %d: cuMemFreeAsync %d, own stream waited for %d, capture ended %d\n",
            (int)mode, freed, waited, ended);
    }
}

/* Does the same on a full device with memory of an explicit pool, and with virtual memory. */
static void section_others() {
    primary();
    warm();
    cudaStream_t busy = new_stream(), ours = new_stream();
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool;
    CHECK(cuMemPoolCreate(&pool, &props));
    CUdeviceptr p;
    CHECK(cuMemAllocFromPoolAsync(&p, 1024 * mib, pool, (CUstream)ours));
    CHECK(cuStreamSynchronize((CUstream)ours));
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUdeviceptr range;
    CHECK(cuMemAddressReserve(&range, 1024 * mib, 0, 0, 0));
    printf("  1 GiB in one handle: create %.3f ms,",
           took_ms([&] { CHECK(cuMemCreate(&handle, 1024 * mib, &prop, 0)); }));
    printf(" map %.3f ms,", took_ms([&] { CHECK(cuMemMap(range, 1024 * mib, 0, handle, 0)); }));
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    printf(" access %.3f ms\n",
           took_ms([&] { CHECK(cuMemSetAccess(range, 1024 * mib, &access, 1)); }));
    auto held = fill_device(1024 * mib);
    int first = -1;
    spin_ms(busy, 300);
    double call = took_ms([&] { CHECK(cuMemFreeAsync(p, (CUstream)ours)); });
    double trim = took_ms([&] {
        CHECK(cuStreamSynchronize((CUstream)ours));
        CHECK(cuMemPoolTrimTo(pool, 0));
    });
    double ms = until_served_ms(1024 * mib, &first);
    printf("  own pool, 300 ms kernel: free %.3f ms, own stream and trim %.3f ms, cuMemAlloc first "
           "%d, served after %.1f ms, busy stream %d\n",
           call, trim, first, ms, (int)cuStreamQuery((CUstream)busy));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemAlloc(&p, 1024 * mib));
    spin_ms(busy, 300);
    call = took_ms([&] { CHECK(cuMemUnmap(range, 1024 * mib)); });
    trim = took_ms([&] { CHECK(cuMemRelease(handle)); });
    ms = until_served_ms(1024 * mib, &first);
    printf("  virtual memory: unmap %.3f ms, release %.3f ms, cuMemAlloc first %d, served after "
           "%.1f ms, busy stream %d\n",
           call, trim, first, ms, (int)cuStreamQuery((CUstream)busy));
    CHECK(cuCtxSynchronize());
}

/* Allocates host memory that the driver's objects may have used before. */
static void churn_host_memory() {
    std::vector<void *> blocks;
    for (size_t bytes = 16; bytes < 65536; bytes += bytes / 4)
        for (int i = 0; i < 20; i++) {
            blocks.push_back(malloc(bytes));
            memset(blocks.back(), 0x5a, bytes);
        }
    for (void *b : blocks)
        free(b);
}

/* Tests whether handles, ids and addresses are reused at once. */
static void section_handles() {
    CHECK(cuInit(0));
    CUcontext a, b, p, q;
    unsigned long long ia, ib;
    CUdeviceptr x, y;
    CHECK(cuCtxCreate_v2(&a, 0, 0));
    CHECK(cuCtxGetId(a, &ia));
    CHECK(cuMemAlloc(&x, 64 * mib));
    CHECK(cuCtxDestroy(a));
    CHECK(cuCtxCreate_v2(&b, 0, 0));
    CHECK(cuCtxGetId(b, &ib));
    CHECK(cuMemAlloc(&y, 64 * mib));
    printf("  context destroyed and made: handle %s, id %llu then %llu, address %s\n",
           a == b ? "comes back" : "is another", ia, ib, x == y ? "comes back" : "is another");
    CHECK(cuCtxGetId(nullptr, &ia));
    printf("  of the current one by NULL: id %llu\n", ia);
    CHECK(cuCtxDestroy(b));
    codes("  none current: cuCtxGetId of NULL %d\n", {(int)cuCtxGetId(nullptr, &ia)});
    CHECK(cuDevicePrimaryCtxRetain(&p, 0));
    CHECK(cuCtxGetId(p, &ia));
    CHECK(cuDevicePrimaryCtxRelease(0));
    churn_host_memory();
    codes("  primary released: cuCtxGetId %d\n", {(int)cuCtxGetId(p, &ib)});
    CHECK(cuDevicePrimaryCtxRetain(&q, 0));
    CHECK(cuCtxGetId(q, &ib));
    printf("  retained again: handle %s, id %llu then %llu\n", p == q ? "the same" : "another", ia,
           ib);
    CHECK(cuDevicePrimaryCtxReset(0));
    churn_host_memory();
    codes("  reset: cuCtxGetId %d\n", {(int)cuCtxGetId(q, &ia)});
    CHECK(cuDevicePrimaryCtxRetain(&q, 0));
    CHECK(cuCtxGetId(q, &ia));
    printf("  retained again: id %llu\n", ia);
    printf("  ns each: cuCtxGetId %.0f, cuCtxGetCurrent %.0f, cuDevicePrimaryCtxGetState %.0f\n",
           mean_ns(100000, [&] { CHECK(cuCtxGetId(q, &ia)); }),
           mean_ns(100000, [&] { CHECK(cuCtxGetCurrent(&p)); }), mean_ns(100000, [&] {
               unsigned flags;
               int active;
               CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
           }));
}

/* Tests the calls that accept the handle of an ended context. Each call has a process of its own,
 * because it may crash. */
static void stale_context(int (*ask)(CUcontext)) {
    CHECK(cuInit(0));
    for (int round = 0; round < 6; round++) {
        CUcontext c[4];
        for (auto &x : c)
            CHECK(cuCtxCreate_v2(&x, 0, 0));
        for (auto &x : c)
            CHECK(cuCtxDestroy(x));
        churn_host_memory();
        CUcontext other;
        CHECK(cuCtxCreate_v2(&other, 0, 0));
        printf("  round %d:", round);
        for (auto &x : c)
            if (x != other) {
                printf(" %d", ask(x));
                fflush(stdout);
            }
        printf("\n");
        CHECK(cuCtxDestroy(other));
    }
}

static void section_stale_id() {
    stale_context([](CUcontext c) {
        unsigned long long id;
        return (int)cuCtxGetId(c, &id);
    });
}

static void section_stale_version() {
    stale_context([](CUcontext c) {
        unsigned version;
        return (int)cuCtxGetApiVersion(c, &version);
    });
}

static void section_stale_current() {
    stale_context([](CUcontext c) {
        CUdeviceptr p;
        CUdevice d;
        CUcontext popped;
        int least, most;
        unsigned long long id;
        int set = cuCtxSetCurrent(c), device = cuCtxGetDevice(&d),
            range = cuCtxGetStreamPriorityRange(&least, &most);
        int own = cuCtxGetId(nullptr, &id), alloc = cuMemAlloc(&p, 4096);
        printf(" [set %d, device %d, range %d, id of NULL %d, alloc %d]", set, device, range, own,
               alloc);
        cuCtxPopCurrent(&popped);
        return alloc;
    });
}

static void section_stale_destroy() {
    stale_context([](CUcontext c) { return (int)cuCtxDestroy(c); });
}

static void stale_event(bool is_primary) {
    CHECK(cuInit(0));
    for (int round = 0; round < 6; round++) {
        CUcontext c;
        CHECK(is_primary ? cuDevicePrimaryCtxRetain(&c, 0) : cuCtxCreate_v2(&c, 0, 0));
        CHECK(cuCtxSetCurrent(c));
        CUevent e[8];
        for (auto &x : e) {
            x = new_event();
            CHECK(cuCtxRecordEvent(c, x));
        }
        CHECK(is_primary ? cuDevicePrimaryCtxReset(0) : cuCtxDestroy(c));
        churn_host_memory();
        printf("  round %d:", round);
        for (auto &x : e) {
            printf(" %d", (int)cuEventQuery(x));
            fflush(stdout);
        }
        printf("\n");
    }
}

static void section_stale_event() {
    stale_event(false);
}
static void section_stale_event_primary() {
    stale_event(true);
}

/* Measures calls of other threads while one thread ends a context with a kernel of 300 ms in it. */
static void during_end(const char *what, CUcontext mine, void (*end)(CUcontext), CUcontext theirs) {
    std::atomic<bool> over{false};
    printf("  during %s, 300 ms in it: ", what);
    CHECK(cuCtxSetCurrent(theirs));
    spin_ms(new_stream(), 300);
    CHECK(cuCtxSetCurrent(nullptr));
    double ended = 0;
    std::thread ender([&] {
        ended = took_ms([&] { end(theirs); });
        over = true;
    });
    usleep(30000);
    double get = took_ms([&] {
        unsigned f;
        int a;
        cuDevicePrimaryCtxGetState(0, &f, &a);
    });
    bool before = !over;
    double alloc = -1, create = -1, retain = -1;
    if (mine) {
        CHECK(cuCtxSetCurrent(mine));
        CUdeviceptr p;
        alloc = took_ms([&] { CHECK(cuMemAlloc(&p, 4 * mib)); });
    }
    CUcontext other;
    create = took_ms([&] { CHECK(cuCtxCreate_v2(&other, 0, 0)); });
    retain = took_ms([&] { CHECK(cuDevicePrimaryCtxRetain(&other, 0)); });
    ender.join();
    printf("it took %.0f ms; GetState %.3f (%s), cuMemAlloc in another context %.3f, cuCtxCreate "
           "%.1f, then "
           "cuDevicePrimaryCtxRetain %.1f ms\n",
           ended, get, before ? "during it" : "afterwards", alloc, create, retain);
}

static void section_during_end() {
    CHECK(cuInit(0));
    CUcontext mine, theirs;
    CHECK(cuCtxCreate_v2(&mine, 0, 0));
    warm();
    CHECK(cuCtxCreate_v2(&theirs, 0, 0));
    warm();
    during_end(
        "cuCtxDestroy", mine, [](CUcontext c) { CHECK(cuCtxDestroy(c)); }, theirs);
    CHECK(cuDevicePrimaryCtxReset(0));
    CHECK(cuDevicePrimaryCtxRetain(&theirs, 0));
    CHECK(cuCtxSetCurrent(theirs));
    warm();
    during_end(
        "cuDevicePrimaryCtxRelease", mine, [](CUcontext) { CHECK(cuDevicePrimaryCtxRelease(0)); },
        theirs);
    CHECK(cuDevicePrimaryCtxReset(0));
    CHECK(cuDevicePrimaryCtxRetain(&theirs, 0));
    CHECK(cuCtxSetCurrent(theirs));
    warm();
    during_end(
        "cuDevicePrimaryCtxReset", mine, [](CUcontext) { CHECK(cuDevicePrimaryCtxReset(0)); },
        theirs);
}

/* Tests whether the driver repeats codes that do not concern the context. */
static void section_codes() {
    primary();
    warm();
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, 4096));
    static int inside[3];
    CHECK(cudaLaunchHostFunc(
        0,
        [](void *) {
            CUdeviceptr q;
            int least, most;
            inside[0] = cuMemAlloc(&q, 4096);
            inside[1] = cuCtxGetStreamPriorityRange(&least, &most);
            inside[2] = cuMemFree(q);
        },
        nullptr));
    CHECK(cuCtxSynchronize());
    CUdeviceptr q;
    printf("  in a host function: cuMemAlloc %d, cuCtxGetStreamPriorityRange %d, cuMemFree %d; "
           "later cuMemAlloc %d\n",
           inside[0], inside[1], inside[2], (int)cuMemAlloc(&q, 4096));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } sections[] = {{"async", section_async},
                    {"async_brim", section_async_brim},
                    {"async_hang", section_async_hang},
                    {"async_threads", section_async_threads},
                    {"ending_threads", section_ending_threads},
                    {"trim_waits", section_trim_waits},
                    {"async_capture", section_async_capture},
                    {"async_crowd", section_async_crowd},
                    {"async_threshold", section_async_threshold},
                    {"asked", section_asked_at_the_end},
                    {"others", section_others},
                    {"handles", section_handles},
                    {"stale_id", section_stale_id},
                    {"stale_version", section_stale_version},
                    {"stale_current", section_stale_current},
                    {"stale_destroy", section_stale_destroy},
                    {"stale_event", section_stale_event},
                    {"stale_event_primary", section_stale_event_primary},
                    {"during_end", section_during_end},
                    {"codes", section_codes}};
    return run_cases(argc, argv, sections);
}
