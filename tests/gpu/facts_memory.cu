/*
 * facts_memory [section]: measures natively how the driver allocates and frees memory and answers
 * queries about it: contexts, sizes, times, stream-ordered frees, pointers. Every section runs in a
 * process of its own.
 */
#include "facts.cuh"

static void section_contexts() {
    CHECK(cuInit(0));
    CUdevice dev;
    CHECK(cuDeviceGet(&dev, 0));
    CUcontext a, b, seen = nullptr;
    CHECK(cuCtxCreate_v2(&a, 0, dev));
    warm();
    CUdeviceptr p[8], q;
    for (auto &x : p)
        CHECK(cuMemAlloc(&x, 1 << 20));
    cudaStream_t sa = new_stream();
    CHECK(cuCtxCreate_v2(&b, 0, dev));
    warm();
    size_t size, total;
    CHECK(cuCtxSetCurrent(nullptr));
    codes("  no current context: cuMemAlloc %d, cuMemGetInfo %d, cuMemGetAddressRange %d,",
          {(int)cuMemAlloc(&q, 4096), (int)cuMemGetInfo(&size, &total),
           (int)cuMemGetAddressRange(&q, &size, p[0])});
    seen = nullptr;
    codes(" CONTEXT %d", {(int)cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_CONTEXT, p[0])});
    printf(" (%s)", seen == a ? "its context" : "not its context");
    codes(", cuMemFree %d, again %d, NULL %d\n",
          {(int)cuMemFree(p[0]), (int)cuMemFree(p[0]), (int)cuMemFree(0)});
    CHECK(cuCtxSetCurrent(b));
    seen = nullptr;
    codes("  other context current: cuMemGetAddressRange %d, CONTEXT %d",
          {(int)cuMemGetAddressRange(&q, &size, p[1]),
           (int)cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_CONTEXT, p[1])});
    printf(" (%s)", seen == a ? "its context" : "not its context");
    codes(", cuMemFree %d\n", {(int)cuMemFree(p[1])});

    CHECK(cuCtxSetCurrent(a));
    spin_ms(sa, 50);
    CHECK(cuCtxSetCurrent(b));
    printf("  a's memory freed with b current while a works 50 ms: code and time");
    int code = -1;
    double ms = took_ms([&] { code = cuMemFree(p[2]); });
    printf(" %d %.1f ms\n", code, ms);
    CHECK(cuCtxSetCurrent(a));
    spin_ms(sa, 50);
    CHECK(cuCtxSetCurrent(nullptr));
    ms = took_ms([&] { code = cuMemFree(p[3]); });
    printf("  a's memory freed with none current while a works 50 ms: %d %.1f ms\n", code, ms);
    CHECK(cuCtxSetCurrent(b));
    CUdeviceptr inb;
    CHECK(cuMemAlloc(&inb, 1 << 20));
    cudaStream_t sb = new_stream();
    CHECK(cuCtxSetCurrent(a));
    spin_ms(sa, 50);
    CHECK(cuCtxSetCurrent(b));
    ms = took_ms([&] { code = cuMemFree(inb); });
    printf("  b's memory freed with b current while a works 50 ms: %d %.1f ms\n", code, ms);
    CHECK(cuCtxSetCurrent(a));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemAlloc(&inb, 1 << 20));
    CHECK(cuCtxSetCurrent(b));
    spin_ms(sb, 50);
    ms = took_ms([&] { code = cuMemFree(inb); });
    printf("  a's memory freed with b current while b works 50 ms: %d %.1f ms\n", code, ms);
    CHECK(cuCtxSynchronize());

    CHECK(cuCtxSetCurrent(a));
    spin_ms(sa, 50);
    CUevent ea = new_event(), eb;
    CHECK(cuCtxRecordEvent(a, ea));
    CHECK(cuCtxSetCurrent(b));
    CHECK(cuEventCreate(&eb, CU_EVENT_DISABLE_TIMING));
    code = cuCtxWaitEvent(b, ea);
    spin_ms(sb, 0);
    ms = took_ms([&] { CHECK(cudaStreamSynchronize(sb)); });
    printf(
        "  b waits (cuCtxWaitEvent %d) for a's event, 50 ms: b's next kernel done after %.1f ms\n",
        code, ms);
    codes("  b's event recorded on a: %d; a's queried with a current, b current, none:",
          {(int)cuCtxRecordEvent(a, eb)});
    CHECK(cuCtxSetCurrent(a));
    codes(" %d", {(int)cuEventQuery(ea)});
    CHECK(cuCtxSetCurrent(b));
    codes(" %d", {(int)cuEventQuery(ea)});
    CHECK(cuCtxSetCurrent(nullptr));
    codes(" %d; record and wait with none current: %d %d\n",
          {(int)cuEventQuery(ea), (int)cuCtxRecordEvent(a, ea), (int)cuCtxWaitEvent(a, ea)});
}

/* Measures the memory that remains in use after a context is destroyed. */
static void section_destroyed() {
    CHECK(cuInit(0));
    CUdevice dev;
    CHECK(cuDeviceGet(&dev, 0));
    CUcontext a, b, c, seen = nullptr;
    CHECK(cuCtxCreate_v2(&a, 0, dev));
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, 1 << 20));
    CUevent ea = new_event();
    unsigned long long id_a, id;
    CHECK(cuCtxGetId(a, &id_a));
    CHECK(cuCtxCreate_v2(&b, 0, dev));
    CHECK(cuCtxDestroy(a));
    codes("  context destroyed: CONTEXT of its pointer %d",
          {(int)cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_CONTEXT, p)});
    codes(", freeing its memory %d\n", {(int)cuMemFree(p)});
    CHECK(cuCtxCreate_v2(&c, 0, dev));
    CHECK(cuCtxGetId(c, &id));
    printf("  the next context made has ");
    same(c == a);
    printf(" handle, ");
    same(id == id_a);
    printf(" id\n");
    CHECK(cuCtxDestroy(c));
    codes("  the destroyed one's event: query %d\n", {(int)cuEventQuery(ea)});
    codes("  and destroy %d\n", {(int)cuEventDestroy(ea)});
    codes("  the destroyed one: id %d\n", {(int)cuCtxGetId(a, &id)});
    codes("  and set current %d\n", {(int)cuCtxSetCurrent(a)});
}

static void section_primary() {
    CHECK(cuInit(0));
    CUdevice dev;
    CHECK(cuDeviceGet(&dev, 0));
    CUcontext one, two, seen = nullptr;
    CUdeviceptr q, r;
    unsigned long long id1 = 0, id2 = 0;
    CHECK(cuDevicePrimaryCtxRetain(&one, dev));
    CHECK(cuCtxSetCurrent(one));
    CHECK(cuMemAlloc(&q, 4096));
    CHECK(cuCtxGetId(one, &id1));
    CHECK(cuDevicePrimaryCtxReset(dev));
    codes("  primary reset, still current: cuMemAlloc %d, cuCtxGetCurrent %d",
          {(int)cuMemAlloc(&r, 4096), (int)cuCtxGetCurrent(&seen)});
    printf(" (%s)", seen == one ? "the old handle" : seen ? "another" : "NULL");
    codes(", cuMemFree of the old pointer %d\n", {(int)cuMemFree(q)});
    CHECK(cuDevicePrimaryCtxRetain(&two, dev));
    CHECK(cuCtxSetCurrent(two));
    CHECK(cuCtxGetId(two, &id2));
    printf("  retained again: handle ");
    same(one == two);
    printf(", id ");
    same(id1 == id2);
    codes(", cuMemFree of the old pointer %d\n", {(int)cuMemFree(q)});
    CHECK(cuMemAlloc(&q, 4096));
    one = two;
    id1 = id2;
    codes("  released twice: %d %d,",
          {(int)cuDevicePrimaryCtxRelease(dev), (int)cuDevicePrimaryCtxRelease(dev)});
    CHECK(cuDevicePrimaryCtxRetain(&two, dev));
    CHECK(cuCtxSetCurrent(two));
    CHECK(cuCtxGetId(two, &id2));
    printf(" retained again: handle ");
    same(one == two);
    printf(", id ");
    same(id1 == id2);
    codes(", cuMemFree of the old pointer %d\n", {(int)cuMemFree(q)});
    void *r1, *r2;
    CHECK(cudaMalloc(&r1, 4096));
    CHECK(cudaDeviceReset());
    CHECK(cudaMalloc(&r2, 4096));
    printf("  cudaMalloc, cudaDeviceReset, cudaMalloc: address ");
    if (!same(r1 == r2))
        codes(", cudaFree of the first %d", {(int)cudaFree(r1)});
    codes(", of the second %d\n", {(int)cudaFree(r2)});
}

static void section_sizes() {
    primary();
    warm();
    size_t before, after, total;
    printf("  %12s %6s %14s %14s %14s %18s %12s\n", "bytes", "count", "device bytes", "per block",
           "first alone", "least alignment", "after free");
    const size_t k = 1024, m = k * k;
    for (size_t bytes :
         {(size_t)1, (size_t)512, 4 * k,  64 * k,    256 * k,    512 * k, m - 512, m,     m + 1,
          3 * m / 2, 2 * m - 1,   2 * m,  2 * m + 1, 3 * m,      4 * m,   5 * m,   8 * m, 16 * m,
          20 * m,    32 * m,      33 * m, 64 * m,    64 * m + 1, 512 * m, 1024 * m}) {
        int n = bytes < m ? 64 : bytes <= 64 * m + 1 ? 16 : 3;
        std::vector<CUdeviceptr> p(n);
        size_t first = 0, align = ~(size_t)0;
        CHECK(cuMemGetInfo(&before, &total));
        for (int i = 0; i < n; i++) {
            CHECK(cuMemAlloc(&p[i], bytes));
            align = std::min(align, (size_t)(p[i] & (~p[i] + 1)));
            if (i == 0) {
                CHECK(cuMemGetInfo(&after, &total));
                first = before - after;
            }
        }
        CHECK(cuMemGetInfo(&after, &total));
        size_t used = before - after;
        for (CUdeviceptr x : p)
            CHECK(cuMemFree(x));
        CHECK(cuMemGetInfo(&after, &total));
        printf("  %12zu %6d %14zu %14zu %14zu %18zu %12zd\n", bytes, n, used, used / n, first,
               align, (ssize_t)before - (ssize_t)after);
    }
    CUdeviceptr small;
    CHECK(cuMemGetInfo(&before, &total));
    CHECK(cuMemAlloc(&small, 512));
    CHECK(cuMemGetInfo(&after, &total));
    printf("  one 512-byte block takes %zu\n", before - after);
    CHECK(cuMemFree(small));
    printf("  total %zu, free now %zu\n", total, after);
    size_t pitch;
    for (size_t width :
         {(size_t)1, (size_t)511, (size_t)512, (size_t)513, (size_t)1000, (size_t)4097}) {
        CHECK(cuMemAllocPitch(&small, &pitch, width, 16, 4));
        CUdeviceptr base;
        size_t size;
        CHECK(cuMemGetAddressRange(&base, &size, small));
        printf("  pitch of width %zu x 16: %zu, address range %zu\n", width, pitch, size);
        CHECK(cuMemFree(small));
    }
}

static void section_time() {
    primary();
    warm();
    cudaStream_t s = new_stream();
    printf("  %8s %12s %12s %14s\n", "MiB", "alloc us", "free us", "alloc busy us");
    for (size_t mib : {1, 2, 8, 32, 64, 128, 256, 512, 1024}) {
        const int n = 8;
        CUdeviceptr p[n];
        double a = 1e9, f = 1e9, busy = 0;
        for (int round = 0; round < 3; round++) {
            a = std::min(a, took_ms([&] {
                                for (auto &x : p)
                                    CHECK(cuMemAlloc(&x, mib << 20));
                            }) / n);
            f = std::min(f, took_ms([&] {
                                for (auto &x : p)
                                    CHECK(cuMemFree(x));
                            }) / n);
        }
        spin_ms(s, 200);
        busy = took_ms([&] {
                   for (auto &x : p)
                       CHECK(cuMemAlloc(&x, mib << 20));
               }) /
               n;
        bool still = cudaStreamQuery(s) == cudaErrorNotReady;
        CHECK(cudaStreamSynchronize(s));
        for (auto &x : p)
            CHECK(cuMemFree(x));
        printf("  %8zu %12.1f %12.1f %14.1f%s\n", mib, a * 1e3, f * 1e3, busy * 1e3,
               still ? "" : " (waited for the kernel)");
    }
}

static void section_async() {
    primary();
    warm();
    cudaStream_t s = new_stream(), other = new_stream();
    CUdeviceptr p, q;
    size_t before, after, total;
    CHECK(cuMemAllocAsync(&q, 1 << 20, (CUstream)s));
    CHECK(cuMemFreeAsync(q, (CUstream)s));
    CHECK(cudaDeviceSynchronize());

    for (size_t bytes : {(size_t)4096, (size_t)64 << 20}) {
        CHECK(cuMemAlloc(&p, bytes));
        spin_ms(s, 50);
        printf("  cuMemFreeAsync of a cuMemAlloc pointer (%zu) on an idle stream, 50 ms kernel on "
               "another: %.2f ms\n",
               bytes, took_ms([&] { CHECK(cuMemFreeAsync(p, (CUstream)other)); }));
        codes("    used again: cuMemFree %d, cuMemFreeAsync %d, address range %d\n",
              {(int)cuMemFree(p), (int)cuMemFreeAsync(p, (CUstream)other),
               (int)cuMemGetAddressRange(&q, &total, p)});
        CHECK(cudaDeviceSynchronize());
        CHECK(cuMemAlloc(&p, bytes));
        spin_ms(s, 50);
        CHECK(cuMemGetInfo(&before, &total));
        printf("  the same on the busy stream: %.2f ms;",
               took_ms([&] { CHECK(cuMemFreeAsync(p, (CUstream)s)); }));
        printf(" pointer still known: address range %d, CONTEXT %d;",
               (int)cuMemGetAddressRange(&q, &total, p),
               (int)cuPointerGetAttribute(&q, CU_POINTER_ATTRIBUTE_CONTEXT, p));
        CHECK(cuMemGetInfo(&after, &total));
        printf(" device memory back: %zd now,", (ssize_t)after - (ssize_t)before);
        CHECK(cudaDeviceSynchronize());
        CHECK(cuMemGetInfo(&after, &total));
        printf(" %zd after synchronising\n", (ssize_t)after - (ssize_t)before);
    }
    CHECK(cuMemAllocAsync(&p, 1 << 20, (CUstream)s));
    spin_ms(s, 50);
    printf("  cuMemFree of a cuMemAllocAsync pointer while its stream works 50 ms: %.2f ms\n",
           took_ms([&] { CHECK(cuMemFree(p)); }));
    CHECK(cudaDeviceSynchronize());
    CHECK(cuMemAllocAsync(&p, 1 << 20, (CUstream)s));
    CHECK(cudaDeviceSynchronize());
    spin_ms(other, 50);
    printf("  the same while another stream works 50 ms: %.2f ms\n",
           took_ms([&] { CHECK(cuMemFree(p)); }));
    CHECK(cudaDeviceSynchronize());
    printf("  cuMemFreeAsync: NULL %d, unknown %d,", (int)cuMemFreeAsync(0, (CUstream)s),
           (int)cuMemFreeAsync(0x1234500, (CUstream)s));
    CHECK(cuMemAlloc(&p, 1 << 20));
    printf(" interior of cuMemAlloc %d,", (int)cuMemFreeAsync(p + 512, (CUstream)s));
    printf(" whole %d\n", (int)cuMemFreeAsync(p, (CUstream)s));
    CHECK(cudaDeviceSynchronize());
    void *host;
    CHECK(cuMemAllocHost(&host, 1 << 20));
    spin_ms(s, 50);
    printf("  cuMemFreeHost while a stream works 50 ms: %.2f ms\n",
           took_ms([&] { CHECK(cuMemFreeHost(host)); }));
    spin_ms(s, 50);
    printf("  cuMemAllocHost while a stream works 50 ms: %.2f ms\n",
           took_ms([&] { CHECK(cuMemAllocHost(&host, 1 << 20)); }));
    CHECK(cudaDeviceSynchronize());
    CHECK(cuMemFreeHost(host));
    CUdeviceptr managed;
    CHECK(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    spin_ms(s, 50);
    printf("  cuMemFree of managed memory while a stream works 50 ms: %.2f ms\n",
           took_ms([&] { CHECK(cuMemFree(managed)); }));
    CHECK(cudaDeviceSynchronize());
    CHECK(cuMemAlloc(&p, 1 << 20));
    spin_ms(s, 50);
    printf("  invalid frees while a stream works 50 ms:");
    printf(" NULL %.2f ms,", took_ms([&] { cuMemFree(0); }));
    printf(" cudaFree(NULL) %.2f ms,", took_ms([&] { cudaFree(nullptr); }));
    printf(" unknown %.2f ms,", took_ms([&] { cuMemFree(0x1234500); }));
    printf(" interior %.2f ms\n", took_ms([&] { cuMemFree(p + 512); }));
    CHECK(cudaDeviceSynchronize());
    CHECK(cuMemFree(p));
}

static void show_pointer(const char *what, CUdeviceptr p, CUdeviceptr base) {
    static const struct {
        CUpointer_attribute id;
        const char *name;
    } attrs[] = {{CU_POINTER_ATTRIBUTE_CONTEXT, "context"},
                 {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "type"},
                 {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, "devptr"},
                 {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, "sync"},
                 {CU_POINTER_ATTRIBUTE_BUFFER_ID, "id"},
                 {CU_POINTER_ATTRIBUTE_IS_MANAGED, "managed"},
                 {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "device"},
                 {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "ipc"},
                 {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "start"},
                 {CU_POINTER_ATTRIBUTE_RANGE_SIZE, "size"},
                 {CU_POINTER_ATTRIBUTE_MAPPED, "mapped"},
                 {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, "handles"},
                 {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "mempool"}};
    printf("  %-34s", what);
    CUdeviceptr b = 0;
    size_t size = 0;
    int code = cuMemGetAddressRange(&b, &size, p);
    printf(" range %d", code);
    if (code == 0)
        printf("(%+lld,%zu)", (long long)(b - base), size);
    for (auto &a : attrs) {
        unsigned long long v = 0;
        code = cuPointerGetAttribute(&v, a.id, p);
        printf(" %s %d", a.name, code);
        if (code == 0 && (a.id == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                          a.id == CU_POINTER_ATTRIBUTE_DEVICE_POINTER))
            printf("(%+lld)", (long long)(v - base));
        else if (code == 0 && a.id != CU_POINTER_ATTRIBUTE_CONTEXT)
            printf("(%llu)", v);
    }
    printf("\n");
}

static void section_pointers() {
    primary();
    warm();
    CUdeviceptr keep, p, big, odd;
    CHECK(cuMemAlloc(&keep, 4096));
    CHECK(cuMemAlloc(&p, 4096));
    CHECK(cuMemAlloc(&odd, 1000));
    CHECK(cuMemAlloc(&big, 64 << 20));
    show_pointer("4096 bytes", p, p);
    show_pointer("interior", p + 100, p);
    show_pointer("last byte", p + 4095, p);
    show_pointer("1000 bytes", odd, odd);
    show_pointer("byte 999", odd + 999, odd);
    show_pointer("byte 1000", odd + 1000, odd);
    show_pointer("byte 1023", odd + 1023, odd);
    show_pointer("64 MiB, interior", big + 12345, big);
    CHECK(cuMemFree(p));
    show_pointer("freed, neighbours live", p, p);
    CUdeviceptr again;
    CHECK(cuMemAlloc(&again, 4096));
    show_pointer(again == p ? "allocated again, same address" : "allocated again, other address",
                 again, again);
    CHECK(cuMemFree(again));
    CHECK(cuMemFree(big));
    show_pointer("64 MiB, freed", big, big);
    show_pointer("NULL", 0, 0);
    int host_value;
    show_pointer("host stack", (CUdeviceptr)&host_value, (CUdeviceptr)&host_value);
    CHECK(cuMemFree(odd));
    CHECK(cuMemFree(keep));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } sections[] = {{"contexts", section_contexts},  {"primary", section_primary},
                    {"sizes", section_sizes},        {"time", section_time},
                    {"async", section_async},        {"pointers", section_pointers},
                    {"destroyed", section_destroyed}};
    return run_cases(argc, argv, sections);
}
