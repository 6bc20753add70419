/*
 * Tests externally visible memory. After a free it may be handed out only when the work on it has
 * finished: a barrier of the context does not order accesses from outside.
 *
 * `ipc_exports WAY` exports blocks in one way, frees them during work, and prints whether memory
 * came back before the end of the work. Natively never: the free waits. Each run tests one way,
 * because a page or segment stays externally visible. "plain" exports nothing.
 */
#include "program.h"

#define KIB ((size_t)1 << 10)
#define ROUNDS 8

static void by_handle(CUdeviceptr p, size_t bytes) {
    CUipcMemHandle handle;
    (void)bytes;
    CHECK(cuIpcGetMemHandle(&handle, p));
}

static void by_tokens(CUdeviceptr p, size_t bytes) {
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    (void)bytes;
    cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, p);
}

static void by_tokens_among_others(CUdeviceptr p, size_t bytes) {
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    int type;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_P2P_TOKENS};
    void *data[] = {&type, &tokens};
    (void)bytes;
    cuPointerGetAttributes(2, names, data, p);
}

static void by_address_range(CUdeviceptr p, size_t bytes) {
    int fd = -1;
    cuMemGetHandleForAddressRange(&fd, p, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

static void by_sync_memops(CUdeviceptr p, size_t bytes) {
    int on = 1;
    (void)bytes;
    cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
}

static void not_at_all(CUdeviceptr p, size_t bytes) {
    (void)p, (void)bytes;
}

static void early(const struct kernels *k, CUstream stream, const char *how,
                  void (*export)(CUdeviceptr, size_t), size_t bytes) {
    unsigned times = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        CUdeviceptr p, q[2];
        CHECK(cuMemAlloc(&p, bytes));
        export(p, bytes);
        CHECK(launch_sleep(k, stream, 2000));
        CHECK(cuMemsetD32Async(p, i, bytes / 4, stream));
        CHECK(cuMemFree(p));
        for (unsigned j = 0; j < 2; j++) {
            CHECK(cuMemAlloc(&q[j], bytes));
            bool overlaps = q[j] < p + bytes && p < q[j] + bytes;
            times += overlaps && cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
        }
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemFree(q[0]));
        CHECK(cuMemFree(q[1]));
    }
    printf("%s, %zu KiB: early %s\n", how, bytes / KIB, times ? "yes" : "never");
}

int main(int argc, char **argv) {
    static const struct {
        const char *how;
        void (*export)(CUdeviceptr, size_t);
    } ways[] = {{"handle", by_handle},
                {"tokens", by_tokens},
                {"tokens among others", by_tokens_among_others},
                {"address range", by_address_range},
                {"sync memops", by_sync_memops},
                {"plain", not_at_all}};
    struct kernels k;
    CUstream stream;
    begin();
    kernels_load(&k);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; argc > 1 && i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].how, argv[1]) == 0) {
            early(&k, stream, ways[i].how, ways[i].export, 4 * KIB);
            early(&k, stream, ways[i].how, ways[i].export, 3072 * KIB);
            return 0;
        }
    }
    return 2;
}
