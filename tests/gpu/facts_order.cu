/*
 * facts_order [section]: measures natively the context events and waits that the library uses to
 * synchronise reuse: their effect, their cost, in captures, with green contexts and after a fault.
 * Every section runs in a process of its own, because a section may hang or break its context.
 */
#include "facts.cuh"

#include <functional>

static void immediate(CUcontext ctx, const char *what, void (*before)(cudaStream_t),
                      cudaStream_t s) {
    const int n = 2000;
    int at_once = 0;
    CUevent ev = new_event();
    std::vector<double> record_ns, ready_ns;
    for (int i = 0; i < n; i++) {
        before(s);
        double t0 = now_s();
        CHECK(cuCtxRecordEvent(ctx, ev));
        double t1 = now_s();
        if (cuEventQuery(ev) == CUDA_SUCCESS)
            at_once++;
        else
            until_ready_ms(ev);
        record_ns.push_back((t1 - t0) * 1e9);
        ready_ns.push_back((now_s() - t1) * 1e9);
    }
    printf("  %s: complete at the first query %d of %d\n", what, at_once, n);
    quantiles("record", record_ns, "ns");
    quantiles("until a query says complete", ready_ns, "ns");
    CHECK(cuEventDestroy(ev));
}

static void section_record() {
    CUcontext ctx = primary();
    warm();
    cudaStream_t s = new_stream();
    immediate(
        ctx, "idle context", [](cudaStream_t) {}, s);
    immediate(
        ctx, "kernel just finished (synchronised)",
        [](cudaStream_t q) {
            spin_ns<<<1, 1, 0, q>>>(1);
            CHECK(cudaStreamSynchronize(q));
        },
        s);
    immediate(
        ctx, "idle for 1 ms", [](cudaStream_t) { usleep(1000); }, s);
    immediate(
        ctx, "short kernel just launched", [](cudaStream_t q) { spin_ns<<<1, 1, 0, q>>>(1); }, s);
    CHECK(cudaDeviceSynchronize());

    CUevent ev = new_event(), busy = new_event();
    CUcontext current;
    int priority_low, priority_high;
    unsigned long long id;
    unsigned api;
    cudaStreamCaptureStatus status;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    printf("  cost, idle context (ns): getcurrent %.1f  getid %.1f  apiversion %.1f  exchange "
           "capture mode %.1f  iscapturing %.1f  priority range %.1f\n",
           mean_ns(1000000, [&] { cuCtxGetCurrent(&current); }),
           mean_ns(1000000, [&] { cuCtxGetId(ctx, &id); }),
           mean_ns(100000, [&] { cuCtxGetApiVersion(ctx, &api); }),
           mean_ns(1000000, [&] { cuThreadExchangeStreamCaptureMode(&mode); }),
           mean_ns(100000, [&] { cudaStreamIsCapturing(s, &status); }),
           mean_ns(100000, [&] { cuCtxGetStreamPriorityRange(&priority_low, &priority_high); }));
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuThreadExchangeStreamCaptureMode(&mode);
    printf("  event create + destroy %.1f ns\n", mean_ns(10000, [&] {
               CUevent e = new_event();
               cuEventDestroy(e);
           }));
    printf("  record %.1f ns\n", mean_ns(100000, [&] { cuCtxRecordEvent(ctx, ev); }));
    CHECK(cudaDeviceSynchronize());
    printf("  query, complete %.1f ns\n", mean_ns(1000000, [&] { cuEventQuery(ev); }));
    printf("  record + query %.1f ns\n", mean_ns(100000, [&] {
               cuCtxRecordEvent(ctx, ev);
               cuEventQuery(ev);
           }));
    CHECK(cuCtxRecordEvent(ctx, ev));
    CHECK(cudaDeviceSynchronize());
    printf("  wait for a complete event %.1f ns\n",
           mean_ns(100000, [&] { cuCtxWaitEvent(ctx, ev); }));
    printf("  record + wait %.1f ns\n", mean_ns(100000, [&] {
               cuCtxRecordEvent(ctx, ev);
               cuCtxWaitEvent(ctx, ev);
           }));
    CHECK(cudaDeviceSynchronize());

    spin_ms(s, 1000);
    double start = now_s();
    CHECK(cuCtxRecordEvent(ctx, busy));
    printf("  busy context (1 s kernel): query, incomplete %.1f ns\n",
           mean_ns(10000, [&] { cuEventQuery(busy); }));
    printf("  record while busy %.1f ns\n", mean_ns(300, [&] { cuCtxRecordEvent(ctx, ev); }));
    printf("  wait for an incomplete event %.1f ns\n",
           mean_ns(300, [&] { cuCtxWaitEvent(ctx, busy); }));
    printf("  record + wait while busy %.1f ns\n", mean_ns(300, [&] {
               cuCtxRecordEvent(ctx, ev);
               cuCtxWaitEvent(ctx, ev);
           }));
    CUevent first = new_event();
    CHECK(cuCtxRecordEvent(ctx, first));
    printf("  destroying an incomplete event: code %d\n", (int)cuEventDestroy(first));
    printf("  all of that took %.1f ms of the kernel's 1000: %s\n", (now_s() - start) * 1e3,
           cuEventQuery(busy) == CUDA_SUCCESS ? "kernel was already over, times are void"
                                              : "kernel still running");
    printf("  until a query says complete, nothing else called: %.1f ms\n", until_ready_ms(busy));
    CHECK(cudaDeviceSynchronize());

    for (int streams : {1, 16, 128}) {
        std::vector<cudaStream_t> more;
        for (int i = 0; i < streams; i++) {
            more.push_back(new_stream());
            spin_ns<<<1, 1, 0, more.back()>>>(1);
        }
        CHECK(cudaDeviceSynchronize());
        double record = mean_ns(10000, [&] { cuCtxRecordEvent(ctx, ev); });
        printf("  %3d more streams: record %.1f ns, record + query until complete %.1f ns\n",
               streams, record, mean_ns(10000, [&] {
                   cuCtxRecordEvent(ctx, ev);
                   while (cuEventQuery(ev) != CUDA_SUCCESS) {
                   }
               }));
        for (cudaStream_t q : more)
            CHECK(cudaStreamDestroy(q));
    }
    for (int threads : {1, 4, 16}) {
        std::vector<double> a(threads), b(threads), c(threads);
        std::vector<std::thread> pool;
        for (int t = 0; t < threads; t++)
            pool.emplace_back([&, t] {
                CHECK(cuCtxSetCurrent(ctx));
                CUevent own = new_event();
                CUcontext cur;
                CHECK(cuCtxRecordEvent(ctx, own));
                a[t] = mean_ns(200000, [&] { cuCtxGetCurrent(&cur); });
                b[t] = mean_ns(20000, [&] { cuEventQuery(own); });
                c[t] = mean_ns(20000, [&] { cuCtxRecordEvent(ctx, own); });
            });
        for (auto &t : pool)
            t.join();
        printf("  %2d threads: getcurrent %.1f  query %.1f  record %.1f ns\n", threads, a[0], b[0],
               c[0]);
    }
}

static CUcontext the_ctx;
static CUevent done_event, fresh_event, stream_event;
static CUdeviceptr spare;
static cudaStream_t aside;

static const char *const op_names[] = {"(nothing)",
                                       "cuEventQuery, stream event",
                                       "cuEventQuery, ctx event",
                                       "cuMemAlloc",
                                       "cuMemFree",
                                       "cuMemFree of NULL",
                                       "cuMemFree, bad pointer",
                                       "cuCtxRecordEvent",
                                       "cuCtxWaitEvent",
                                       "cuCtxSynchronize",
                                       "cuEventSynchronize",
                                       "cuMemGetInfo",
                                       "cuEventCreate+Destroy",
                                       "cuPointerGetAttribute",
                                       "cuMemGetAddressRange",
                                       "cuMemAllocHost+Free",
                                       "cuMemAllocManaged+Free",
                                       "cuMemCreate+Release",
                                       "cuMemMap and back",
                                       "cuMemAllocAsync, other stream",
                                       "cuStreamSynchronize, other",
                                       "cuStreamCreate+Destroy",
                                       "cuEventRecord, other stream",
                                       "cuMemsetD8 (legacy stream)",
                                       "cuMemAllocPitch+Free",
                                       "cuIpcGetMemHandle"};
enum { op_count = sizeof op_names / sizeof *op_names };

static int do_op(int op) {
    CUdeviceptr p = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    const size_t page = 2u << 20;
    size_t a, b;
    int code = 0;
    switch (op) {
    case 1:
        return cuEventQuery(stream_event);
    case 2:
        return cuEventQuery(done_event);
    case 3:
        return cuMemAlloc(&spare, 1 << 20);
    case 4:
        return cuMemFree(spare);
    case 5:
        return cuMemFree(0);
    case 6:
        return cuMemFree(spare + 512);
    case 7:
        return cuCtxRecordEvent(the_ctx, fresh_event);
    case 8:
        return cuCtxWaitEvent(the_ctx, done_event);
    case 9:
        return cuCtxSynchronize();
    case 10:
        return cuEventSynchronize(done_event);
    case 11:
        return cuMemGetInfo(&a, &b);
    case 12: {
        CUevent e;
        code = cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
        return code ? code : cuEventDestroy(e);
    }
    case 13:
        return cuPointerGetAttribute(&p, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, spare);
    case 14:
        return cuMemGetAddressRange(&p, &a, spare);
    case 15: {
        void *host;
        code = cuMemAllocHost(&host, 4096);
        return code ? code : cuMemFreeHost(host);
    }
    case 16:
        code = cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL);
        return code ? code : cuMemFree(p);
    case 17:
        code = cuMemCreate(&handle, page, &prop, 0);
        return code ? code : cuMemRelease(handle);
    case 18: {
        CUmemAccessDesc access = {};
        access.location = prop.location;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        code = cuMemCreate(&handle, page, &prop, 0);
        if (!code)
            code = cuMemAddressReserve(&p, page, 0, 0, 0);
        if (!code)
            code = cuMemMap(p, page, 0, handle, 0);
        if (!code)
            code = cuMemSetAccess(p, page, &access, 1);
        if (!code)
            code = cuMemUnmap(p, page);
        cuMemRelease(handle);
        cuMemAddressFree(p, page);
        return code;
    }
    case 19:
        code = cuMemAllocAsync(&p, 4096, (CUstream)aside);
        return code ? code : cuMemFreeAsync(p, (CUstream)aside);
    case 20:
        return cuStreamSynchronize((CUstream)aside);
    case 21: {
        CUstream s;
        code = cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
        return code ? code : cuStreamDestroy(s);
    }
    case 22:
        return cuEventRecord(stream_event, (CUstream)aside);
    case 23:
        return cuMemsetD8(spare, 0, 16);
    case 24:
        code = cuMemAllocPitch(&p, &a, 100, 100, 4);
        return code ? code : cuMemFree(p);
    case 25: {
        CUipcMemHandle h;
        return cuIpcGetMemHandle(&h, spare);
    }
    }
    return 0;
}

/* Makes one operation in a capture. Writes its code and EndCapture's to `out`, as "0/0". */
static void trial(char *out, size_t size, CUstreamCaptureMode mode, bool other_thread, int exchange,
                  int op) {
    cudaStream_t s = new_stream();
    if (op != 3)
        CHECK(cuMemAlloc(&spare, 1 << 20));
    int code = -1;
    CHECK(cuStreamBeginCapture((CUstream)s, mode));
    auto body = [&] {
        if (other_thread)
            CHECK(cuCtxSetCurrent(the_ctx));
        CUstreamCaptureMode m = (CUstreamCaptureMode)exchange;
        if (exchange >= 0)
            CHECK(cuThreadExchangeStreamCaptureMode(&m));
        code = do_op(op);
        if (exchange >= 0)
            CHECK(cuThreadExchangeStreamCaptureMode(&m));
    };
    if (other_thread)
        std::thread(body).join();
    else
        body();
    CUgraph graph = nullptr;
    int end = cuStreamEndCapture((CUstream)s, &graph);
    if (end == 0)
        cuGraphDestroy(graph);
    snprintf(out, size, "%d/%d", code, end);
    CHECK(cudaStreamDestroy(s));
    (void)cudaGetLastError();
    if ((op != 4 || code != 0) && (op != 3 || code == 0))
        CHECK(cuMemFree(spare));
}

static void section_capture() {
    the_ctx = primary();
    warm();
    aside = new_stream();
    done_event = new_event();
    fresh_event = new_event();
    stream_event = new_event();
    CHECK(cuCtxRecordEvent(the_ctx, done_event));
    CHECK(cuEventRecord(stream_event, (CUstream)aside));
    CHECK(cudaDeviceSynchronize());
    const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                         CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                         CU_STREAM_CAPTURE_MODE_RELAXED};
    printf("  operation's code / EndCapture's code; capture mode G(lobal) T(hread-local) "
           "R(elaxed), then where the operation runs: s(ame) or o(ther)\n"
           "  thread, then that thread's own mode: as it is (global), +T, +R\n  %-30s",
           "");
    for (int m = 0; m < 3; m++)
        for (int where = 0; where < 2; where++)
            for (const char *x : {"", "+T", "+R"})
                printf(" %c%c%-4s ", "GTR"[m], "so"[where], x);
    printf("\n");
    std::vector<std::string> rows(op_count);
    for (int op = 0; op < op_count; op++) {
        printf("  %-30s", op_names[op]);
        for (CUstreamCaptureMode mode : modes)
            for (int where = 0; where < 2; where++)
                for (int exchange : {-1, (int)CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                     (int)CU_STREAM_CAPTURE_MODE_RELAXED}) {
                    char text[32];
                    trial(text, sizeof text, mode, where == 1, exchange, op);
                    printf(" %-7s", text);
                    rows[op] += std::string(text) + " ";
                }
        printf("\n");
    }
    for (int op : {1, 4, 5, 11, 13})
        printf("  %s answers as %s in all of them: %s; as %s: %s\n", op_names[op], op_names[3],
               rows[op] == rows[3] ? "yes" : "no", op_names[2], rows[op] == rows[2] ? "yes" : "no");
}

static void section_green() {
    CUcontext ctx = primary();
    warm();
    CUdevice dev;
    CHECK(cuCtxGetDevice(&dev));
    CUdevResource all, part, rest;
    unsigned groups = 1;
    CHECK(cuDeviceGetDevResource(dev, &all, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, 16));
    CUdevResourceDesc desc;
    CHECK(cuDevResourceGenerateDesc(&desc, &part, 1));
    CUgreenCtx green;
    CHECK(cuGreenCtxCreate(&green, desc, dev, CU_GREEN_CTX_DEFAULT_STREAM));
    CUcontext gctx;
    CHECK(cuCtxFromGreenCtx(&gctx, green));
    CUstream gs;
    CHECK(cuGreenCtxStreamCreate(&gs, green, CU_STREAM_NON_BLOCKING, 0));
    cudaStream_t s = new_stream();
    printf("  green CUcontext %s the primary one\n", gctx == ctx ? "is" : "is not");

    auto green_spin = [&](int ms) {
        CHECK(cuCtxSetCurrent(gctx));
        spin_ms((cudaStream_t)gs, ms);
        CHECK(cuCtxSetCurrent(ctx));
    };
    green_spin(1);
    CHECK(cudaDeviceSynchronize());
    CHECK(cuStreamSynchronize(gs));

    CUevent ev = new_event();
    CUdeviceptr p;
    green_spin(50);
    CHECK(cuCtxRecordEvent(ctx, ev));
    codes("  record on primary while green works 50 ms: first query %d", {(int)cuEventQuery(ev)});
    printf(", complete after %.1f ms\n", until_ready_ms(ev));
    CHECK(cuStreamSynchronize(gs));

    CHECK(cuMemAlloc(&p, 1 << 20));
    green_spin(50);
    printf("  cuMemFree (memory of primary, primary current) while green works 50 ms: %.1f ms\n",
           took_ms([&] { CHECK(cuMemFree(p)); }));
    CHECK(cuStreamSynchronize(gs));
    green_spin(50);
    printf("  cuMemAlloc (primary current) while green works 50 ms: %.1f ms\n",
           took_ms([&] { CHECK(cuMemAlloc(&p, 1 << 20)); }));
    CHECK(cuStreamSynchronize(gs));
    CHECK(cuMemFree(p));

    /* memory allocated while the green context is current */
    CHECK(cuCtxSetCurrent(gctx));
    CUcontext seen = nullptr;
    CHECK(cuCtxGetCurrent(&seen));
    printf("  cuCtxGetCurrent with green current gives %s\n", seen == gctx  ? "the green context"
                                                              : seen == ctx ? "the primary context"
                                                                            : "something else");
    CHECK(cuMemAlloc(&p, 1 << 20));
    seen = nullptr;
    int code = cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_CONTEXT, p);
    printf("  CONTEXT of memory allocated with green current: code %d, %s\n", code,
           seen == gctx  ? "the green context"
           : seen == ctx ? "the primary context"
           : seen        ? "something else"
                         : "NULL");
    CHECK(cuCtxSetCurrent(ctx));
    spin_ms(s, 50);
    CHECK(cuCtxSetCurrent(gctx));
    printf("  freeing it (green current) while primary works 50 ms: %.1f ms\n",
           took_ms([&] { CHECK(cuMemFree(p)); }));
    CHECK(cuMemAlloc(&p, 1 << 20));
    CHECK(cuCtxSetCurrent(ctx));
    spin_ms(s, 50);
    printf("  freeing it (primary current) while primary works 50 ms: %.1f ms\n",
           took_ms([&] { CHECK(cuMemFree(p)); }));
    CHECK(cudaDeviceSynchronize());
    CHECK(cuCtxSetCurrent(gctx));
    CHECK(cuMemAlloc(&p, 1 << 20));
    CHECK(cuCtxSetCurrent(ctx));
    green_spin(50);
    printf("  freeing it (primary current) while green works 50 ms: %.1f ms\n",
           took_ms([&] { CHECK(cuMemFree(p)); }));
    CHECK(cuStreamSynchronize(gs));

    /* records and waits, all four ways */
    CUevent gev;
    CHECK(cuCtxSetCurrent(gctx));
    CHECK(cuEventCreate(&gev, CU_EVENT_DISABLE_TIMING));
    CHECK(cuCtxSetCurrent(ctx));
    spin_ms(s, 50);
    code = cuCtxRecordEvent(gctx, gev);
    codes("  record on green while primary works 50 ms: code %d, first query %d",
          {code, (int)cuEventQuery(gev)});
    printf(", complete after %.1f ms\n", until_ready_ms(gev));
    CHECK(cudaDeviceSynchronize());
    codes("  record on green of an event made in primary: code %d; on primary of one made in "
          "green: code %d\n",
          {(int)cuCtxRecordEvent(gctx, ev), (int)cuCtxRecordEvent(ctx, gev)});
    CHECK(cudaDeviceSynchronize());

    spin_ms(s, 50);
    CHECK(cuCtxRecordEvent(ctx, ev));
    CHECK(cuCtxWaitEvent(ctx, ev));
    green_spin(0);
    printf("  wait on primary for 50 ms of primary: green's next kernel is done after %.1f ms "
           "(about 50 = ordered)\n",
           took_ms([&] { CHECK(cuStreamSynchronize(gs)); }));
    CHECK(cudaDeviceSynchronize());
    green_spin(50);
    CHECK(cuCtxRecordEvent(ctx, ev));
    CHECK(cuCtxWaitEvent(ctx, ev));
    spin_ms(s, 0);
    printf("  wait on primary for 50 ms of green: primary's next kernel is done after %.1f ms "
           "(about 50 = ordered)\n",
           took_ms([&] { CHECK(cudaStreamSynchronize(s)); }));
    CHECK(cuStreamSynchronize(gs));

    /* capture in the green context */
    CHECK(cuCtxSetCurrent(gctx));
    CHECK(cuStreamBeginCapture(gs, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuCtxSetCurrent(ctx));
    code = cuCtxRecordEvent(ctx, ev);
    CHECK(cuCtxSetCurrent(gctx));
    CUgraph g = nullptr;
    int end = cuStreamEndCapture(gs, &g);
    printf("  green stream captures (relaxed), record on primary: code %d, EndCapture %d\n", code,
           end);
    CHECK(cuCtxSetCurrent(ctx));
    (void)cudaGetLastError();

    CHECK(cuCtxSetCurrent(gctx));
    CHECK(cuMemAlloc(&p, 4096));
    CHECK(cuCtxSetCurrent(ctx));
    CHECK(cuStreamDestroy(gs));
    CHECK(cuGreenCtxDestroy(green));
    printf("  memory allocated with green current, green destroyed: cuMemFree code %d\n",
           (int)cuMemFree(p));
}

static const char *const sticky_names[] = {"cuCtxSynchronize",
                                           "cuMemAlloc",
                                           "cuMemFree",
                                           "cuEventQuery (recorded before)",
                                           "cuCtxRecordEvent",
                                           "cuMemGetInfo",
                                           "cuPointerGetAttribute",
                                           "cuMemGetAddressRange",
                                           "cuMemFree, bad pointer",
                                           "cuCtxWaitEvent",
                                           "cuMemAlloc of 1 PiB"};
enum { sticky_count = sizeof sticky_names / sizeof *sticky_names };

static int sticky_op(int op, CUcontext ctx, CUdeviceptr p, CUevent ev) {
    CUdeviceptr q;
    size_t a, b;
    switch (op) {
    case 0:
        return cuCtxSynchronize();
    case 1:
        return cuMemAlloc(&q, 4096);
    case 2:
        return cuMemFree(p);
    case 3:
        return cuEventQuery(ev);
    case 4:
        return cuCtxRecordEvent(ctx, ev);
    case 5:
        return cuMemGetInfo(&a, &b);
    case 6:
        return cuPointerGetAttribute(&q, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p);
    case 7:
        return cuMemGetAddressRange(&q, &a, p);
    case 8:
        return cuMemFree(p + 512);
    case 9:
        return cuCtxWaitEvent(ctx, ev);
    case 10:
        return cuMemAlloc(&q, (size_t)1 << 50);
    }
    return -1;
}

static void sticky_child(int first) {
    CUcontext ctx = primary();
    warm();
    CUdeviceptr p;
    CUevent ev = new_event(), idle = new_event();
    CHECK(cuMemAlloc(&p, 1 << 20));
    CHECK(cuCtxRecordEvent(ctx, idle));
    CHECK(cuCtxRecordEvent(ctx, ev));
    CHECK(cudaDeviceSynchronize());
    set_flag<<<1, 1>>>((volatile int *)0x10, 1);
    usleep(100000);
    printf("  first after the fault: %-32s %d;", sticky_names[first], sticky_op(first, ctx, p, ev));
    if (first != 0) {
        printf(" then cuCtxSynchronize %d\n", (int)cuCtxSynchronize());
        return;
    }
    printf(" then");
    for (int op = 0; op < sticky_count; op++)
        printf(" %s %d,", sticky_names[op], sticky_op(op, ctx, p, ev));
    printf("\n  after it: cudaMalloc %d,", (int)cudaMalloc((void **)&p, 4096));
    codes(" cudaGetLastError %d %d,", {(int)cudaGetLastError(), (int)cudaGetLastError()});
    printf(" cudaFree(p) %d,", (int)cudaFree((void *)p));
    printf(" cudaDeviceReset %d,", (int)cudaDeviceReset());
    printf(" cudaMalloc %d,", (int)cudaMalloc((void **)&p, 4096));
    printf(" cudaFree %d,", (int)cudaFree((void *)p));
    printf(" cudaDeviceSynchronize %d\n", (int)cudaDeviceSynchronize());
}

static void section_sticky() {
    for (int op = 0; op < sticky_count; op++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(15);
            sticky_child(op);
            fflush(stdout);
            _exit(0);
        }
        waitpid(pid, nullptr, 0);
    }
}

/*
 * Tests which orders of records and waits make kernel B queue behind kernel A (law 3 with
 * barriers). A spins until B, launched last, sets its flag. K is a kernel of 30 ms that runs before
 * both. A scene is a text: K, A and B launch; E and L record the event E or L; w waits for E in the
 * context; f waits on the CPU for K; b is other work on B's stream.
 */
static bool hangs(const char *scene, bool used_stream) {
    CUcontext ctx = primary();
    CUevent e = new_event(), l = new_event();
    cudaStream_t k = new_stream(), a = new_stream(), b = new_stream();
    int *flags, gave_up = 0;
    CHECK(cudaMalloc(&flags, 512));
    CHECK(cudaMemset(flags, 0, 512));
    spin_ns<<<1, 1, 0, k>>>(1);
    spin_until<<<1, 1, 0, a>>>(flags, 0, flags + 1, 1);
    set_flag<<<1, 1, 0, used_stream ? b : k>>>(flags, 0);
    CHECK(cudaDeviceSynchronize());
    for (const char *step = scene; *step; step++) {
        switch (*step) {
        case 'K':
            spin_ms(k, 30);
            break;
        case 'A':
            spin_until<<<1, 1, 0, a>>>(flags, 1, flags + 1, 1);
            break;
        case 'B':
            set_flag<<<1, 1, 0, b>>>(flags, 1);
            break;
        case 'b':
            spin_ns<<<1, 1, 0, b>>>(1);
            break;
        case 'E':
            CHECK(cuCtxRecordEvent(ctx, e));
            break;
        case 'L':
            CHECK(cuCtxRecordEvent(ctx, l));
            break;
        case 'q':
            cuEventQuery(l);
            break;
        case 'w':
            CHECK(cuCtxWaitEvent(ctx, e));
            break;
        case 'f':
            CHECK(cudaStreamSynchronize(k));
            until_ready_ms(e);
            break;
        }
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&gave_up, flags + 1, sizeof gave_up, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(flags));
    for (cudaStream_t s : {k, a, b})
        CHECK(cudaStreamDestroy(s));
    CHECK(cuEventDestroy(e));
    CHECK(cuEventDestroy(l));
    return gave_up > 0;
}

static void section_barrier() {
    static const char *const scenes[] = {
        "KAEwB",  "KEAwB",   "KEwAB",   "KEALwB",   "KEALqwB", "KEAwLB",   "KEwALB",
        "KEwAEB", "KEwbAEB", "KEwfAEB", "KEwfbAEB", "KEfAEB",  "KEfwAEB",  "KEfAwEB",
        "KEfwAB", "KEfALwB", "KEfwALB", "KELAwB",   "KLEAwB",  "LKEAwB",   "KEALLLLLLwB",
        "EAwB",   "EALwB",   "EwAEB",   "EwbAEB",   "KEwEAB",  "KEwKEAwB", "KEwKEwALB"};
    for (const char *scene : scenes)
        printf("  %-12s B on a stream that has worked before: %s; on a new one: %s\n", scene,
               hangs(scene, true) ? "HANGS" : "ends", hangs(scene, false) ? "HANGS" : "ends");
}

/* The next steps of a program after a late record L, made while kernel A spins. Each is measured
 * with and without the record. */
static const char *const step_names[] = {"kernel, new stream",
                                         "kernel, legacy stream",
                                         "kernel, per-thread stream",
                                         "kernel, blocking stream",
                                         "copy to host, synchronous",
                                         "copy to device, pageable, async",
                                         "cudaMemsetAsync",
                                         "cudaMallocAsync + free",
                                         "graph launch",
                                         "host function",
                                         "event of a stream, waited",
                                         "cudaHostAlloc",
                                         "cudaStreamCreate",
                                         "cudaMalloc",
                                         "cuMemMap and back",
                                         "cudaMemcpyAsync, device",
                                         "stream priority high"};
enum { steps = sizeof step_names / sizeof *step_names };

static void program_step(int step, cudaStream_t b, char *device, char *host,
                         cudaGraphExec_t graph) {
    void *p;
    cudaStream_t other;
    switch (step) {
    case 0:
        spin_ns<<<1, 1, 0, b>>>(1);
        CHECK(cudaStreamSynchronize(b));
        break;
    case 1:
        spin_ns<<<1, 1>>>(1);
        CHECK(cudaStreamSynchronize(nullptr));
        break;
    case 2:
        spin_ns<<<1, 1, 0, cudaStreamPerThread>>>(1);
        CHECK(cudaStreamSynchronize(cudaStreamPerThread));
        break;
    case 3:
        CHECK(cudaStreamCreate(&other));
        spin_ns<<<1, 1, 0, other>>>(1);
        CHECK(cudaStreamSynchronize(other));
        break;
    case 4:
        CHECK(cudaMemcpy(host, device, 4096, cudaMemcpyDeviceToHost));
        break;
    case 5: {
        static char pageable[1 << 20];
        CHECK(cudaMemcpyAsync(device, pageable, sizeof pageable, cudaMemcpyHostToDevice, b));
        CHECK(cudaStreamSynchronize(b));
        break;
    }
    case 6:
        CHECK(cudaMemsetAsync(device, 0, 4096, b));
        CHECK(cudaStreamSynchronize(b));
        break;
    case 7:
        CHECK(cudaMallocAsync(&p, 1 << 20, b));
        CHECK(cudaFreeAsync(p, b));
        CHECK(cudaStreamSynchronize(b));
        break;
    case 8:
        CHECK(cudaGraphLaunch(graph, b));
        CHECK(cudaStreamSynchronize(b));
        break;
    case 9:
        CHECK(cudaLaunchHostFunc(
            b, [](void *) {}, nullptr));
        CHECK(cudaStreamSynchronize(b));
        break;
    case 10: {
        cudaEvent_t e;
        CHECK(cudaEventCreate(&e));
        CHECK(cudaEventRecord(e, b));
        CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        CHECK(cudaStreamWaitEvent(other, e, 0));
        spin_ns<<<1, 1, 0, other>>>(1);
        CHECK(cudaStreamSynchronize(other));
        break;
    }
    case 11:
        CHECK(cudaHostAlloc(&p, 1 << 20, 0));
        break;
    case 12:
        CHECK(cudaStreamCreate(&other));
        break;
    case 13:
        CHECK(cudaMalloc(&p, 1 << 20));
        break;
    case 14:
        do_op(18);
        break;
    case 15:
        CHECK(cudaMemcpyAsync(device, device + 8192, 4096, cudaMemcpyDeviceToDevice, b));
        CHECK(cudaStreamSynchronize(b));
        break;
    case 16:
        CHECK(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, -1));
        spin_ns<<<1, 1, 0, other>>>(1);
        CHECK(cudaStreamSynchronize(other));
        break;
    }
}

static void section_late() {
    CUcontext ctx = primary();
    CUevent l = new_event(), e = new_event();
    cudaStream_t a = new_stream(), b = new_stream(), k = new_stream();
    int *flags;
    char *device, *host;
    CHECK(cudaMalloc(&flags, 512));
    CHECK(cudaMemset(flags, 0, 512));
    CHECK(cudaMalloc(&device, 2 << 20));
    CHECK(cudaHostAlloc(&host, 4096, 0));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(b, cudaStreamCaptureModeRelaxed));
    spin_ns<<<1, 1, 0, b>>>(1);
    CHECK(cudaStreamEndCapture(b, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    spin_until<<<1, 1, 0, a>>>(flags, 0, flags + 1, 1);
    set_flag<<<1, 1, 0, b>>>(flags, 0);
    CHECK(cudaDeviceSynchronize());
    for (int step = 0; step < steps; step++) { /* a first round loads all code */
        program_step(step, b, device, host, exec);
    }
    int level = 0;
    for (int step = 0; step < steps; step++) {
        double ms[2];
        for (int late = 0; late < 2; late++) {
            CHECK(cudaDeviceSynchronize());
            spin_until<<<1, 1, 0, a>>>(flags, ++level, flags + 1, 1);
            if (late)
                CHECK(cuCtxRecordEvent(ctx, l));
            ms[late] = took_ms([&] { program_step(step, b, device, host, exec); });
            set_flag<<<1, 1, 0, b>>>(flags, level);
        }
        printf("  %-34s %.3f ms, after a late record %.3f ms\n", step_names[step], ms[0], ms[1]);
    }
    CHECK(cudaDeviceSynchronize());

    spin_until<<<1, 1, 0, a>>>(flags, ++level, flags + 1, 4);
    double worst = 0, begin = now_s();
    int n = 0, at = 0;
    for (; n < 1000000 && now_s() - begin < 3; n++) {
        double t = took_ms([&] { CHECK(cuCtxRecordEvent(ctx, l)); });
        at = t > worst ? n : at;
        worst = t > worst ? t : worst;
    }
    set_flag<<<1, 1, 0, b>>>(flags, level);
    CHECK(cudaDeviceSynchronize());
    int gave_up;
    CHECK(cudaMemcpy(&gave_up, flags + 1, sizeof gave_up, cudaMemcpyDeviceToHost));
    printf("  late records of one event behind a kernel that spins: %d, the slowest (no. %d) %.3f "
           "ms; %d gave up\n",
           n, at, worst, gave_up);

    for (int older = 0; older < 2; older++) {
        CUevent events[2] = {e, l};
        spin_ms(k, 20);
        CHECK(cuCtxRecordEvent(ctx, e));
        spin_ms(a, 200);
        CHECK(cuCtxRecordEvent(ctx, l));
        double t = now_s();
        CHECK(cuCtxWaitEvent(ctx, events[!older]));
        spin_ns<<<1, 1, 0, b>>>(1);
        CHECK(cudaStreamSynchronize(b));
        printf("  wait for the %s of two events (20 ms, 200 ms): next work ran after %.1f ms\n",
               older ? "older" : "newer", (now_s() - t) * 1e3);
        CHECK(cudaDeviceSynchronize());
    }
    for (int older = 0; older < 2; older++) {
        spin_ms(k, 20);
        CHECK(cuCtxRecordEvent(ctx, e));
        spin_ms(a, 200);
        CHECK(cuCtxRecordEvent(ctx, l));
        double t = now_s();
        if (older)
            CHECK(cuEventSynchronize(e));
        else
            CHECK(cuStreamWaitEvent(b, e, 0));
        spin_ns<<<1, 1, 0, b>>>(1);
        CHECK(cudaStreamSynchronize(b));
        printf("  the older of the two waited for by %s: next work ran after %.1f ms\n",
               older ? "cuEventSynchronize" : "cuStreamWaitEvent", (now_s() - t) * 1e3);
        CHECK(cudaDeviceSynchronize());
    }
}

extern "C" CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes);
extern "C" CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes);
extern "C" CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);

static CUdeviceptr mapped(size_t bytes) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle page;
    CUdeviceptr p;
    CHECK(cuMemCreate(&page, bytes, &prop, 0));
    CHECK(cuMemAddressReserve(&p, bytes, 0, 0, 0));
    CHECK(cuMemMap(p, bytes, 0, page, 0));
    CHECK(cuMemSetAccess(p, bytes, &access, 1));
    return p;
}

/* Memory p belongs to context b, `mine` to the current context a. `word` is 9 at the start. */
struct across {
    CUcontext a, b;
    CUdeviceptr p, mine;
    cudaStream_t stream; /* of context a */
    uint32_t word;
};

static const struct {
    const char *name;
    int (*call)(across &x);
} across_calls[] = {
    {"DtoH", [](across &x) { return (int)cuMemcpyDtoH(&x.word, x.p, 4); }},
    {"DtoH_ptds", [](across &x) { return (int)cuMemcpyDtoH_v2_ptds(&x.word, x.p, 4); }},
    {"DtoHAsync", [](across &x) { return (int)cuMemcpyDtoHAsync(&x.word, x.p, 4, x.stream); }},
    {"HtoD", [](across &x) { return (int)cuMemcpyHtoD(x.p, &x.word, 4); }},
    {"HtoD_ptds", [](across &x) { return (int)cuMemcpyHtoD_v2_ptds(x.p, &x.word, 4); }},
    {"DtoD to a's", [](across &x) { return (int)cuMemcpyDtoD(x.mine, x.p, 4); }},
    {"DtoD to b's", [](across &x) { return (int)cuMemcpyDtoD(x.p, x.mine, 4); }},
    {"DtoD in b's", [](across &x) { return (int)cuMemcpyDtoD(x.p + 4, x.p, 4); }},
    {"DtoD_ptds to a's", [](across &x) { return (int)cuMemcpyDtoD_v2_ptds(x.mine, x.p, 4); }},
    {"Peer to a's", [](across &x) { return (int)cuMemcpyPeer(x.mine, x.a, x.p, x.b, 4); }},
    {"Peer to b's", [](across &x) { return (int)cuMemcpyPeer(x.p, x.b, x.mine, x.a, 4); }},
    {"fill", [](across &x) { return (int)cuMemsetD32(x.p, 9, 1); }},
};

/* Makes one call while context b or a works for 100 ms in `stream`. Afterwards b fills p with 7. */
static void across_call(across &x, size_t which, bool own, CUstream stream) {
    CHECK(cuCtxSetCurrent(x.a));
    CHECK(cuMemsetD32(x.mine, 9, 1));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(x.b));
    CHECK(cuMemsetD32(x.p, 1, 2));
    CHECK(cuCtxSynchronize());
    if (own)
        CHECK(cuCtxSetCurrent(x.a));
    spin_ms(stream, 100);
    CHECK(cuMemsetD32Async(x.p, 7, 1, stream));
    CHECK(cuCtxSetCurrent(x.a));
    x.word = 9;
    int code;
    uint32_t there[2], mine;
    double call = took_ms([&] { code = across_calls[which].call(x); });
    double rest = took_ms([&] { CHECK(cuCtxSynchronize()); });
    CHECK(cuMemcpyDtoH(&mine, x.mine, 4));
    CHECK(cuCtxSetCurrent(x.b));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(there, x.p, 8));
    printf("    %-17s %d  call %6.1f ms, a's rest %6.1f ms  host %u, a's %u, b's %u %u\n",
           across_calls[which].name, code, call, rest, x.word, mine, there[0], there[1]);
}

/* Tests how a capture of a stream of b reacts to a query of b's null stream, and to a copy by a. */
static void across_capture(across &x, unsigned flags) {
    CUstream s;
    CUgraph graph;
    CUstreamCaptureStatus status;
    CHECK(cuCtxSetCurrent(x.b));
    CHECK(cuStreamCreate(&s, flags));
    for (int copy = 0; copy < 2; copy++) {
        CHECK(cuCtxSetCurrent(x.b));
        CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        if (copy)
            CHECK(cuCtxSetCurrent(x.a));
        int code = copy ? (int)cuMemcpyDtoH(&x.word, x.p, 4)
                        : (int)cuStreamIsCapturing(CU_STREAM_LEGACY, &status);
        CHECK(cuCtxSetCurrent(x.b));
        int then = (int)cuMemsetD32Async(x.p, 7, 1, s);
        printf("    b captures a %s stream: %s %d, captured then %d, end %d\n",
               flags ? "non-blocking" : "blocking", copy ? "a's DtoH" : "is b's null stream", code,
               then, (int)cuStreamEndCapture(s, &graph));
    }
    CHECK(cuStreamDestroy(s));
}

/*
 * Tests copies between two contexts of one device. On an H200 (driver 580), with p of cuMemAlloc,
 * DtoH, HtoD and DtoD by a waited for b's null stream; copies in a stream and fills did not. With p
 * mapped by VMM no call waited, and DtoH read the old value.
 */
static void section_across() {
    across x = {};
    CUdevice device;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&x.a, 0, device));
    warm();
    CHECK(cuMemAlloc(&x.mine, 4096));
    x.stream = new_stream();
    CHECK(cuCtxCreate_v2(&x.b, 0, device));
    warm();
    cudaStream_t stream = new_stream();
    CUdeviceptr kinds[2] = {0, mapped(2 << 20)};
    CHECK(cuMemAlloc(&kinds[0], 4096));
    const struct {
        const char *name;
        bool own;
        CUstream stream;
    } places[] = {{"b works in its null stream", false, CU_STREAM_LEGACY},
                  {"b works in its per-thread stream", false, CU_STREAM_PER_THREAD},
                  {"b works in a non-blocking stream", false, stream},
                  {"a works in its null stream", true, CU_STREAM_LEGACY}};
    for (int kind = 0; kind < 2; kind++) {
        x.p = kinds[kind];
        for (auto &place : places) {
            printf("  %s, %s:\n", kind ? "mapped" : "cuMemAlloc", place.name);
            for (size_t i = 0; i < sizeof across_calls / sizeof *across_calls; i++)
                across_call(x, i, place.own, place.stream);
        }
        for (unsigned flags : {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING})
            across_capture(x, flags);
    }
}

static __global__ void print_a_line() {
    printf("    a kernel's line\n");
}

/*
 * Tests which calls print what a kernel wrote by printf(). The kernel has completed before each
 * call, by queries. On an H100 (driver 580) the waits and the free printed and the queries did not;
 * without any such call the line appeared within 100 ms.
 */
static void section_print() {
    CUcontext ctx = primary();
    warm();
    cudaStream_t other = new_stream();
    CUevent ev = new_event();
    CUdeviceptr p;
    const struct {
        const char *name;
        std::function<void()> call;
    } calls[] = {
        {"cuEventQuery", [&] { cuEventQuery(ev); }},
        {"cuStreamQuery of another stream", [&] { cuStreamQuery(other); }},
        {"cuEventSynchronize", [&] { cuEventSynchronize(ev); }},
        {"cuStreamSynchronize of another stream", [&] { cuStreamSynchronize(other); }},
        {"cuCtxSynchronize", [&] { cuCtxSynchronize(); }},
        {"cuMemAlloc", [&] { cuMemAlloc(&p, 4096); }},
        {"cuMemFree", [&] { cuMemFree(p); }},
        {"nothing, for 100 ms", [&] { usleep(100000); }},
    };
    fflush(stdout);
    setvbuf(stdout, NULL, _IONBF, 0); /* the order of the lines is that of the calls */
    for (auto &one : calls) {
        print_a_line<<<1, 1>>>();
        CHECK(cuCtxRecordEvent(ctx, ev));
        until_ready_ms(ev);
        printf("  %s:\n", one.name);
        one.call();
        printf("    it has returned\n");
        CHECK(cuCtxSynchronize());
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } sections[] = {{"record", section_record},   {"capture", section_capture},
                    {"green", section_green},     {"sticky", section_sticky},
                    {"barrier", section_barrier}, {"late", section_late},
                    {"across", section_across},   {"print", section_print}};
    return run_cases(argc, argv, sections);
}
