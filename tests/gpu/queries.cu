/* queries [case]: prints the driver's answers about pointers: addresses as differences, identities
 * as same or different. */
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

#include "check.h"
#include "codes.h"

static CUcontext context;
static CUstream stream;

static void begin() {
    CHECK(cudaFree(nullptr));
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static unsigned long long buffer_id(CUdeviceptr p) {
    unsigned long long id = 0;
    return cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p) == CUDA_SUCCESS ? id : 0;
}

enum class as { number, offset, context, id, host };

static const struct {
    CUpointer_attribute id;
    const char *name;
    as how;
} attributes[] = {{CU_POINTER_ATTRIBUTE_CONTEXT, "context", as::context},
                  {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "type", as::number},
                  {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, "device pointer", as::offset},
                  {CU_POINTER_ATTRIBUTE_HOST_POINTER, "host pointer", as::host},
                  {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, "sync memops", as::number},
                  {CU_POINTER_ATTRIBUTE_BUFFER_ID, "buffer id", as::id},
                  {CU_POINTER_ATTRIBUTE_IS_MANAGED, "managed", as::number},
                  {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "device", as::number},
                  {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "ipc", as::number},
                  {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "range start", as::offset},
                  {CU_POINTER_ATTRIBUTE_RANGE_SIZE, "range size", as::number},
                  {CU_POINTER_ATTRIBUTE_MAPPED, "mapped", as::number},
                  {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, "handle types", as::number},
                  {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, "rdma", as::number},
                  {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, "access", as::number},
                  {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "mempool", as::id},
                  {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, "mapping size", as::id},
                  {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, "mapping base", as::id},
                  {CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, "block id", as::id},
                  {CU_POINTER_ATTRIBUTE_P2P_TOKENS, "p2p tokens", as::id}};

/* Prints all answers about p, relative to `base`, the start of its block. */
static void show(const char *what, CUdeviceptr p, CUdeviceptr base) {
    for (auto &a : attributes) {
        unsigned long long v[4] = {};
        int code = cuPointerGetAttribute(v, a.id, p);
        printf("%s: %s %d", what, a.name, code);
        if (code == 0)
            switch (a.how) {
            case as::number:
                printf(" %llu", v[0]);
                break;
            case as::offset:
                printf(" %+lld", (long long)(v[0] - base));
                break;
            case as::context:
                printf(" %s", (CUcontext)v[0] == context ? "current" : v[0] ? "another" : "NULL");
                break;
            case as::id:
                printf(" %s", v[0] ? "set" : "0");
                break;
            case as::host:
                printf(" %s", v[0] == base ? "the same" : "another");
                break;
            }
        printf("\n");
    }
    CUdeviceptr start = 0;
    size_t size = 0;
    int code = cuMemGetAddressRange(&start, &size, p);
    printf("%s: address range %d", what, code);
    if (code == 0)
        printf(" %+lld %zu", (long long)(start - base), size);
    codes("; start only %d, size only %d, neither %d\n",
          {(int)cuMemGetAddressRange(&start, nullptr, p),
           (int)cuMemGetAddressRange(nullptr, &size, p),
           (int)cuMemGetAddressRange(nullptr, nullptr, p)});

    CUpointer_attribute several[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0;
    unsigned long long id = 0;
    int device = -7;
    start = 0, size = 0;
    void *out[] = {&type, &start, &size, &id, &device};
    code = cuPointerGetAttributes(5, several, out, p);
    printf("%s: several at once %d: type %u, start %+lld, size %zu, id %s, device %d\n", what, code,
           type, start ? (long long)(start - base) : 0, size,
           id == buffer_id(p) ? "as before" : "another", device);

    cudaPointerAttributes r;
    memset(&r, 0, sizeof r);
    code = cudaPointerGetAttributes(&r, (void *)p);
    printf("%s: runtime %d type %d device %d, device pointer %s, host pointer %s\n", what, code,
           (int)r.type, r.device,
           r.devicePointer == (void *)p ? "itself"
           : r.devicePointer            ? "another"
                                        : "NULL",
           r.hostPointer == (void *)p ? "itself"
           : r.hostPointer            ? "another"
                                      : "NULL");
    (void)cudaGetLastError();
}

static void case_sizes() {
    begin();
    for (size_t bytes : {(size_t)1, (size_t)1000, (size_t)4096, (size_t)1 << 20,
                         ((size_t)2 << 20) + 5, (size_t)3 << 20, (size_t)100 << 20}) {
        CUdeviceptr p;
        char what[64];
        CHECK(cuMemAlloc(&p, bytes));
        snprintf(what, sizeof what, "%zu bytes", bytes);
        show(what, p, p);
        snprintf(what, sizeof what, "%zu bytes, last one", bytes);
        show(what, p + bytes - 1, p);
        CHECK(cuMemFree(p));
    }
}

static void case_kinds() {
    begin();
    CUdeviceptr managed, ordered;
    void *pinned, *mapped, *heap = malloc(1 << 16);
    int here = 0;
    CHECK(cuMemAllocManaged(&managed, 1 << 16, CU_MEM_ATTACH_GLOBAL));
    CHECK(cuMemAllocAsync(&ordered, 1 << 16, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemAllocHost(&pinned, 1 << 16));
    CHECK(cuMemHostAlloc(&mapped, 1 << 16, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    CHECK(cuMemHostRegister(heap, 1 << 16, 0));
    show("managed, interior", managed + 100, managed);
    show("stream-ordered, interior", ordered + 100, ordered);
    show("pinned", (CUdeviceptr)pinned, (CUdeviceptr)pinned);
    show("mapped, interior", (CUdeviceptr)mapped + 100, (CUdeviceptr)mapped);
    show("registered", (CUdeviceptr)heap, (CUdeviceptr)heap);
    show("stack", (CUdeviceptr)&here, (CUdeviceptr)&here);
    show("NULL", 0, 0);
    CHECK(cuMemHostUnregister(heap));
    CHECK(cuMemFree(managed));
    CHECK(cuMemFree(ordered));
    CHECK(cuMemFreeHost(pinned));
    CHECK(cuMemFreeHost(mapped));
    free(heap);
}

static void case_freed() {
    begin();
    CUdeviceptr large;
    CHECK(cuMemAlloc(&large, 64 << 20));
    CHECK(cuMemFree(large));
    show("freed, 64 MiB", large, large);
}

static void case_identity() {
    begin();
    std::vector<CUdeviceptr> p(40);
    std::vector<unsigned long long> ids;
    int repeated = 0, changing = 0, overlapping = 0, misaligned = 0;
    for (int round = 0; round < 5; round++) {
        for (size_t i = 0; i < p.size(); i++) {
            size_t bytes = (size_t)300 << (i + round) % 14;
            CHECK(cuMemAlloc(&p[i], bytes));
            unsigned long long id = buffer_id(p[i]);
            for (unsigned long long other : ids)
                repeated += other == id;
            ids.push_back(id);
            changing += id != buffer_id(p[i] + bytes / 2) || id == 0;
            misaligned += p[i] % 512 != 0;
            for (size_t k = 0; k < i; k++)
                overlapping +=
                    p[i] < p[k] + ((size_t)300 << (k + round) % 14) && p[k] < p[i] + bytes;
        }
        for (CUdeviceptr x : p)
            CHECK(cuMemFree(x));
    }
    printf("%zu allocations: %d buffer ids repeated, %d differ inside, %d overlap, %d not aligned "
           "to 512\n",
           ids.size(), repeated, changing, overlapping, misaligned);
}

static void case_settings() {
    begin();
    CUdeviceptr a, b;
    unsigned on = 1, off = 0, seen = 7;
    CHECK(cuMemAlloc(&a, 4096));
    CHECK(cuMemAlloc(&b, 4096));
    codes("sync memops: set %d",
          {(int)cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a)});
    codes(", read %d", {(int)cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a)});
    printf(" = %u", seen);
    codes(", interior %d",
          {(int)cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a + 100)});
    printf(" = %u", seen);
    codes(", the neighbour %d",
          {(int)cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b)});
    printf("\nnote: the neighbour's is %u\n", seen);
    codes("set by interior pointer %d, off %d",
          {(int)cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a + 100),
           (int)cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a)});
    codes(", read %d", {(int)cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a)});
    printf(" = %u\n", seen);
    codes("set type %d, set on the stack %d, set NULL value %d\n",
          {(int)cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a),
           (int)cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)&on),
           (int)cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a)});
    codes("read into NULL %d, an attribute there is not %d, none at all %d\n",
          {(int)cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a),
           (int)cuPointerGetAttribute(&seen, (CUpointer_attribute)999, a),
           (int)cuPointerGetAttributes(0, nullptr, nullptr, a)});
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
    CHECK(cuMemAlloc(&a, 4096));
    codes("allocated again: read %d",
          {(int)cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a)});
    printf(" = %u\n", seen);
    CUdeviceptr big;
    CHECK(cuMemAlloc(&big, 4 << 20));
    int fd = -1;
    int code =
        cuMemGetHandleForAddressRange(&fd, big, 2 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    printf("DMA-BUF of 2 MiB: code %d%s\n", code, code == 0 && fd >= 0 ? ", a file" : "");
    codes(
        "DMA-BUF of an odd range %d\n",
        {(int)cuMemGetHandleForAddressRange(&fd, a, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)});
    CUipcMemHandle handle;
    codes("IPC handle: of a block %d, of the inside of one %d, of the stack %d, into NULL %d\n",
          {(int)cuIpcGetMemHandle(&handle, a), (int)cuIpcGetMemHandle(&handle, a + 100),
           (int)cuIpcGetMemHandle(&handle, (CUdeviceptr)&on), (int)cuIpcGetMemHandle(nullptr, a)});
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(big));
}

/* Copies and fills up to the end of a block. The memory behind must not change. */
static void case_edges() {
    begin();
    CUdeviceptr p[3];
    for (auto &x : p) {
        CHECK(cuMemAlloc(&x, 1000));
        CHECK(cuMemsetD8(x, 0x11, 1000));
    }
    unsigned char host[1000];
    codes("set all %d, copy in %d,",
          {(int)cuMemsetD8(p[1], 0x22, 1000), (int)cuMemcpyHtoD(p[1] + 999, "x", 1)});
    codes(" 2D %d\n", {(int)cuMemsetD2D8(p[1], 100, 0x33, 50, 10)});
    int wrong = 0;
    for (int i : {0, 2}) {
        CHECK(cuMemcpyDtoH(host, p[i], 1000));
        for (unsigned char c : host)
            wrong += c != 0x11;
    }
    CHECK(cuMemcpyDtoH(host, p[1], 1000));
    for (int i = 0; i < 1000; i++)
        wrong += host[i] != (i == 999 ? 'x' : i % 100 < 50 ? 0x33 : 0x22);
    printf("%d bytes wrong\n", wrong);
    for (auto &x : p)
        CHECK(cuMemFree(x));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } cases[] = {{"sizes", case_sizes},       {"kinds", case_kinds},       {"freed", case_freed},
                 {"identity", case_identity}, {"settings", case_settings}, {"edges", case_edges}};
    return run_cases(argc, argv, cases);
}
