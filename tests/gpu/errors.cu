/*
 * errors [case]: prints the codes of wrong calls, never addresses. Every case runs in a process of
 * its own, because some cases break their context.
 */
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <initializer_list>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "check.h"
#include "codes.h"
#include "kernels.cuh"

static void *device_block(size_t bytes = 1 << 20) {
    void *p;
    CHECK(cudaMalloc(&p, bytes));
    return p;
}

static int last() {
    return (int)cudaGetLastError();
}

static void case_frees() {
    void *p = device_block(), *other = device_block(), *big = device_block(64 << 20), *host,
         *pinned, *managed;
    int on_stack;
    codes("interior free: small %d, large %d, odd byte %d, then last error %d %d\n",
          {(int)cudaFree((char *)p + 512), (int)cudaFree((char *)big + (2 << 20)),
           (int)cudaFree((char *)p + 1), last(), last()});
    codes("free %d, double free %d, last error %d\n", {(int)cudaFree(p), (int)cudaFree(p), last()});
    codes("large free %d, double %d, interior after free %d, last error %d\n",
          {(int)cudaFree(big), (int)cudaFree(big), (int)cudaFree((char *)big + 512), last()});
    host = malloc(4096);
    codes("free of stack %d, heap %d, nonsense %d %d, NULL %d, last error %d\n",
          {(int)cudaFree(&on_stack), (int)cudaFree(host), (int)cudaFree((void *)0x12345000),
           (int)cudaFree((void *)~(uintptr_t)0xfff), (int)cudaFree(nullptr), last()});
    CHECK(cudaMallocHost(&pinned, 4096));
    codes("cudaFree of pinned host memory %d, cudaFreeHost of device memory %d, of heap %d, of "
          "NULL %d, last error %d\n",
          {(int)cudaFree(pinned), (int)cudaFreeHost(other), (int)cudaFreeHost(host),
           (int)cudaFreeHost(nullptr), last()});
    CHECK(cudaMallocManaged(&managed, 4096));
    codes("managed: free %d, double free %d; pinned: free %d; the other block %d\n",
          {(int)cudaFree(managed), (int)cudaFree(managed), (int)cudaFreeHost(pinned),
           (int)cudaFree(other)});
    (void)cudaGetLastError();
    free(host);
    void *again[8];
    for (auto &x : again)
        x = device_block(4096);
    codes("still working: free %d, sync %d, last error %d\n",
          {(int)cudaFree(again[3]), (int)cudaDeviceSynchronize(), last()});
    for (auto &x : again)
        if (x != again[3])
            CHECK(cudaFree(x));
    codes("freed one twice among eight: %d\n", {(int)cudaFree(again[3])});
}

static void case_sizes() {
    void *p = (void *)1;
    codes("cudaMalloc(0) %d", {(int)cudaMalloc(&p, 0)});
    printf(", pointer %s; ", p ? "set" : "NULL");
    codes("NULL out %d, NULL out with 0 %d, 1 PiB %d",
          {(int)cudaMalloc((void **)nullptr, 100), (int)cudaMalloc((void **)nullptr, 0),
           (int)cudaMalloc(&p, (size_t)1 << 50)});
    codes(", last error %d %d", {last(), last()});
    for (size_t bytes :
         {~(size_t)0, ~(size_t)511, ~(size_t)0 - (2 << 20), (size_t)1 << 63, (size_t)1 << 47})
        codes(", huge %d", {(int)cudaMalloc(&p, bytes)});
    codes("; after that: small %d, free %d, last error %d %d\n",
          {(int)cudaMalloc(&p, 100), (int)cudaFree(p), last(), last()});
    CUdeviceptr d = 1;
    codes("cuMemAlloc(0) %d", {(int)cuMemAlloc(&d, 0)});
    printf(", pointer %s", d == 1 ? "untouched" : d ? "set" : "NULL");
    d = 1;
    codes("; 1 PiB %d", {(int)cuMemAlloc(&d, (size_t)1 << 50)});
    printf(", pointer %s", d == 1 ? "untouched" : d ? "set" : "NULL");
    codes("; NULL out %d, cuMemFree(0) %d, cuMemFree(nonsense) %d\n",
          {(int)cuMemAlloc(nullptr, 100), (int)cuMemFree(0), (int)cuMemFree(0x12345000)});
    size_t pitch = 7;
    codes("cuMemAllocPitch: element 3 %d, 0 wide %d, 0 high %d, NULL pitch %d, NULL out %d",
          {(int)cuMemAllocPitch(&d, &pitch, 100, 10, 3), (int)cuMemAllocPitch(&d, &pitch, 0, 10, 4),
           (int)cuMemAllocPitch(&d, &pitch, 100, 0, 4),
           (int)cuMemAllocPitch(&d, nullptr, 100, 10, 4),
           (int)cuMemAllocPitch(nullptr, &pitch, 100, 10, 4)});
    codes(", huge %d\n", {(int)cuMemAllocPitch(&d, &pitch, (size_t)1 << 40, 1 << 20, 4)});
    for (unsigned element : {4u, 8u, 16u})
        for (size_t width : {(size_t)1, (size_t)511, (size_t)512, (size_t)513, (size_t)5000}) {
            CHECK(cuMemAllocPitch(&d, &pitch, width, 11, element));
            printf("pitch %zu: %zu", width, pitch);
            CUdeviceptr base;
            size_t size;
            codes(", range %d", {(int)cuMemGetAddressRange(&base, &size, d + 1)});
            printf(" %zu %lld; ", size, (long long)(base - d));
            CHECK(cuMemFree(d));
        }
    printf("\n");
    pitch = 7;
    codes("cudaMallocPitch 0x0 %d, 0x5 %d, 5x0 %d",
          {(int)cudaMallocPitch(&p, &pitch, 0, 0), (int)cudaMallocPitch(&p, &pitch, 0, 5),
           (int)cudaMallocPitch(&p, &pitch, 5, 0)});
    cudaPitchedPtr box;
    codes(", cudaMalloc3D %d", {(int)cudaMalloc3D(&box, make_cudaExtent(100, 20, 7))});
    printf(" (pitch %zu)", box.pitch);
    codes(", free %d, last error %d\n", {(int)cudaFree(box.ptr), last()});
}

static void case_exhausted() {
    const size_t chunk = (size_t)4 << 30;
    size_t count[2] = {};
    int code = 0;
    for (size_t &n : count) {
        std::vector<void *> held;
        void *p = nullptr;
        while (held.size() < 64 && (code = cudaMalloc(&p, chunk)) == 0)
            held.push_back(p);
        n = held.size();
        codes("device full: code %d, last error %d %d", {code, last(), last()});
        codes(", one more %d, free one %d, and again %d, last error %d",
              {(int)cudaMalloc(&p, chunk), (int)cudaFree(held[0]), (int)cudaMalloc(&held[0], chunk),
               last()});
        for (void *x : held)
            CHECK(cudaFree(x));
        codes(", after freeing: %d %d\n", {(int)cudaMalloc(&p, chunk), (int)cudaFree(p)});
    }
    printf("as many blocks fit the second time: %s\n", count[0] == count[1] ? "yes" : "no");
    print_time("chunks", (double)count[0], "blocks");
}

static void case_async() {
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    void *p, *q;
    p = device_block();
    /* No second free of such a block: natively it succeeds, and the driver crashes later. */
    codes("cudaFreeAsync of cudaMalloc %d, last error %d;", {(int)cudaFreeAsync(p, s), last()});
    codes(" sync %d;", {(int)cudaStreamSynchronize(s)});
    CHECK(cudaMallocAsync(&q, 1 << 20, s));
    codes(" cudaFree of cudaMallocAsync %d, again %d, last error %d\n",
          {(int)cudaFree(q), (int)cudaFree(q), last()});
    p = device_block();
    codes("cudaFreeAsync: interior %d, NULL %d, nonsense %d,",
          {(int)cudaFreeAsync((char *)p + 512, s), (int)cudaFreeAsync(nullptr, s),
           (int)cudaFreeAsync((void *)0x12345000, s)});
    codes(" whole %d, last error %d, sync %d\n",
          {(int)cudaFreeAsync(p, s), last(), (int)cudaStreamSynchronize(s)});
    CHECK(cudaMallocAsync(&q, 4096, s));
    codes("cudaMallocAsync memory: interior cudaFree %d, cudaFreeAsync %d, twice %d, sync %d,",
          {(int)cudaFree((char *)q + 256), (int)cudaFreeAsync(q, s), (int)cudaFreeAsync(q, s),
           (int)cudaStreamSynchronize(s)});
    codes(" zero bytes %d, 1 PiB %d, last error %d\n",
          {(int)cudaMallocAsync(&q, 0, s), (int)cudaMallocAsync(&q, (size_t)1 << 50, s), last()});
    for (int i = 0; i < 20; i++) {
        p = device_block((size_t)4096 << i % 10);
        CHECK(cudaMemsetAsync(p, i, 4096, s));
        CHECK(i % 2 ? cudaFree(p) : cudaFreeAsync(p, s));
    }
    codes("twenty mixed frees: sync %d\n", {(int)cudaDeviceSynchronize()});
}

static void case_no_context() {
    CUdeviceptr p = 0;
    size_t a, b;
    unsigned long long v;
    codes("before cuInit: alloc %d, free %d, info %d, range %d, attribute %d\n",
          {(int)cuMemAlloc(&p, 100), (int)cuMemFree(0x1000), (int)cuMemGetInfo(&a, &b),
           (int)cuMemGetAddressRange(&p, &a, 0x1000),
           (int)cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_CONTEXT, 0x1000)});
    CHECK(cuInit(0));
    codes("without a context: alloc %d, alloc 0 %d, free %d, free 0 %d, info %d, range %d, "
          "attribute %d, pitch %d, async %d, host %d, managed %d\n",
          {(int)cuMemAlloc(&p, 100), (int)cuMemAlloc(&p, 0), (int)cuMemFree(0x1000),
           (int)cuMemFree(0), (int)cuMemGetInfo(&a, &b), (int)cuMemGetAddressRange(&p, &a, 0x1000),
           (int)cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_CONTEXT, 0x1000),
           (int)cuMemAllocPitch(&p, &a, 100, 10, 4), (int)cuMemAllocAsync(&p, 100, 0),
           (int)cuMemAllocHost((void **)&v, 100),
           (int)cuMemAllocManaged(&p, 100, CU_MEM_ATTACH_GLOBAL)});
    CUdevice dev;
    CUcontext ctx;
    CHECK(cuDeviceGet(&dev, 0));
    CHECK(cuDevicePrimaryCtxRetain(&ctx, dev));
    codes("retained, not current: alloc %d\n", {(int)cuMemAlloc(&p, 100)});
    CHECK(cuCtxPushCurrent(ctx));
    codes("current: alloc %d", {(int)cuMemAlloc(&p, 100)});
    CHECK(cuCtxPopCurrent(&ctx));
    codes(", popped: free %d, free again %d\n", {(int)cuMemFree(p), (int)cuMemFree(p)});
    codes("wrong device: cudaSetDevice %d, last error %d, cudaMalloc %d\n",
          {(int)cudaSetDevice(99), last(), (int)cudaMalloc((void **)&p, 100)});
    CHECK(cuMemGetInfo(&a, &b));
    codes("cuMemGetInfo with NULL: %d %d %d\n",
          {(int)cuMemGetInfo(nullptr, &b), (int)cuMemGetInfo(&a, nullptr),
           (int)cuMemGetInfo(nullptr, nullptr)});
}

static void fault() {
    set_flag<<<1, 1>>>((volatile int *)0x10, 1);
    usleep(200000);
}

static void case_fault_sync() {
    void *p = device_block(), *q;
    fault();
    codes(
        "fault, then sync %d, malloc %d, free %d, last error %d %d\n",
        {(int)cudaDeviceSynchronize(), (int)cudaMalloc(&q, 100), (int)cudaFree(p), last(), last()});
    codes("reset %d, malloc %d, ", {(int)cudaDeviceReset(), (int)cudaMalloc(&q, 1 << 20)});
    fill<<<64, 256>>>((uint32_t *)q, 1 << 18, 1);
    codes("launch %d, sync %d, free %d, last error %d\n",
          {last(), (int)cudaDeviceSynchronize(), (int)cudaFree(q), last()});
}

static void case_fault_malloc() {
    void *p = device_block(4096), *q;
    CHECK(cudaFree(p));
    CHECK(cudaDeviceSynchronize());
    fault();
    /* which call first reports a fault without a wait depends on timing */
    codes("note: fault, then malloc %d, malloc %d, sync %d, last error %d\n",
          {(int)cudaMalloc(&q, 4096), (int)cudaMalloc(&q, 64 << 20), (int)cudaDeviceSynchronize(),
           last()});
}

static void case_fault_free() {
    void *p = device_block(), *q = device_block();
    fault();
    codes("note: fault, then free %d, free %d, double free %d, free NULL %d, sync %d, last error "
          "%d\n",
          {(int)cudaFree(p), (int)cudaFree(q), (int)cudaFree(p), (int)cudaFree(nullptr),
           (int)cudaDeviceSynchronize(), last()});
}

static void case_memory_info() {
    size_t before, during, after, total, total2;
    void *warm = device_block();
    CHECK(cudaFree(warm));
    CHECK(cudaMemGetInfo(&before, &total));
    void *p = device_block((size_t)1 << 30);
    CHECK(cudaMemGetInfo(&during, &total2));
    CHECK(cudaFree(p));
    CHECK(cudaMemGetInfo(&after, &total2));
    const long long g = 1 << 30, slack = 64 << 20;
    long long took = (long long)before - (long long)during,
              back = (long long)after - (long long)during;
    printf("total the same %s; free below total %s; 1 GiB taken %s; given back %s\n",
           total == total2 ? "yes" : "no", before < total ? "yes" : "no",
           took >= g - slack && took <= g + slack ? "yes" : "no",
           back >= g - slack && back <= g + slack ? "yes" : "no");
    print_time("free", (double)after, "bytes");
}

struct at_exit {
    void *p = nullptr;
    ~at_exit() {
        if (p) {
            codes("in a static destructor: free %d, free again %d\n",
                  {(int)cudaFree(p), (int)cudaFree(p)});
            fflush(stdout);
        }
    }
};
static at_exit held;

static void case_at_exit() {
    held.p = device_block();
    atexit([] {
        codes("in atexit: malloc and free %d\n", {[] {
                  void *q;
                  return (int)cudaMalloc(&q, 100) + 100 * (int)cudaFree(q);
              }()});
    });
}

static void case_status() {
    device_block();
    fflush(stdout);
    exit(7);
}

static void case_fork() {
    void *p = device_block(), *q;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        codes("in a forked child: malloc %d, free %d, sync %d\n",
              {(int)cudaMalloc(&q, 100), (int)cudaFree(p), (int)cudaDeviceSynchronize()});
        fflush(stdout);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("child ended with 0x%x\n", status);
    codes("in the parent: malloc %d, free %d %d\n",
          {(int)cudaMalloc(&q, 100), (int)cudaFree(q), (int)cudaFree(p)});
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } cases[] = {{"frees", case_frees},
                 {"sizes", case_sizes},
                 {"exhausted", case_exhausted},
                 {"async", case_async},
                 {"no_context", case_no_context},
                 {"fault_sync", case_fault_sync},
                 {"fault_malloc", case_fault_malloc},
                 {"fault_free", case_fault_free},
                 {"memory_info", case_memory_info},
                 {"at_exit", case_at_exit},
                 {"status", case_status},
                 {"fork", case_fork}};
    return run_cases(argc, argv, cases);
}
