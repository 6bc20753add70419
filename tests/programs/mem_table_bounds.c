/*
 * mem_table_bounds NAME [COUNT]: fills a table of the library to its bound plus one
 * (docs/design/internals.md, "Bounds"). Prints codes and counts, which are the same natively.
 *
 *   | name           | action                                                                  |
 *   | -------------- | ----------------------------------------------------------------------- |
 *   | contexts COUNT | COUNT contexts next to two others, which are used after the others' end |
 *   | memops COUNT   | SYNC_MEMOPS of COUNT blocks                                             |
 *   | streams COUNT  | frees in COUNT streams, more in each than a stream has events           |
 *   | captures COUNT | COUNT captures at once                                                  |
 *   | pinned COUNT   | COUNT blocks of pinned memory, freed and taken again                    |
 *   | devices        | a block on the last device                                              |
 *   | no_current     | the driver fails to name the current context                            |
 */
#include "diff.h"
#include "sim.h"

#define FREES 6 /* frees in one stream, which has four events */

/* The version that every driver has. cuda.h declares only the newest one. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);

static CUcontext create(CUdevice device) {
    CUcontext context, popped;
    CHECK(cuCtxCreate_v2(&context, 0, device));
    CHECK(cuCtxPopCurrent(&popped));
    return context;
}

static void *list_of(size_t count, size_t bytes) {
    void *list = calloc(count, bytes);
    if (!list)
        exit(2);
    return list;
}

/* ---- contexts ---- */

struct own {
    CUcontext context;
    struct kernels kernels;
    CUstream stream;
};

static struct own own_context(void) {
    struct own own = {.context = create(0)};
    CHECK(cuCtxSetCurrent(own.context));
    kernels_load(&own.kernels);
    CHECK(cuStreamCreate(&own.stream, CU_STREAM_NON_BLOCKING));
    return own;
}

/* The first context frees memory that its work still fills, and allocates it again. The last
 * context writes to it. Natively the free waits for the fill. Returns whether the last context's
 * words are there at the end. */
static bool last_one_wins(const struct own *first, const struct own *last, uint32_t *bad) {
    CUdeviceptr x, y;
    *bad = 0;
    CHECK(cuCtxSetCurrent(first->context));
    CHECK(cuMemAlloc(&x, 32 * MIB)); /* one half of the device, then the other half */
    CHECK(cuMemAlloc(&y, 32 * MIB));
    CHECK(launch_sleep(&first->kernels, first->stream, 20000));
    CHECK(launch_fill(&first->kernels, first->stream, x, 1, 4096));
    CHECK(cuMemFree(x));
    CHECK(cuMemAlloc(&x, 32 * MIB));
    CHECK(cuCtxSetCurrent(last->context));
    CHECK(launch_fill(&last->kernels, last->stream, x, 2, 4096));
    CHECK(cuStreamSynchronize(last->stream));
    CHECK(cuCtxSetCurrent(first->context));
    CHECK(cuCtxSynchronize());
    CHECK(launch_check(&first->kernels, first->stream, x, 2, 4096, (CUdeviceptr)(uintptr_t)bad));
    CHECK(cuStreamSynchronize(first->stream));
    CHECK(cuMemFree(x));
    CHECK(cuMemFree(y));
    return *bad == 0;
}

static void contexts(unsigned count) {
    CUcontext *between = list_of(count, sizeof *between);
    unsigned good = 0;
    uint32_t *bad;
    CHECK(cuInit(0));
    struct own first = own_context();
    CHECK(cuMemAllocHost((void **)&bad, 4));
    for (unsigned i = 0; i < count; i++)
        between[i] = create(0);
    struct own last = own_context();
    for (unsigned i = 0; i < count; i++)
        CHECK(cuCtxDestroy(between[i]));
    for (unsigned i = 0; i < 20; i++)
        good += last_one_wins(&first, &last, bad);
    line("mem_table_bounds: contexts: %u of 20", good);
    free(between);
}

/* ---- SYNC_MEMOPS ---- */

static int memops_of(CUdeviceptr p) {
    int value = -1;
    CUresult r = cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
    return r == CUDA_SUCCESS ? value : -(int)r;
}

/* Every other block is small. */
static size_t bytes_of(unsigned i) {
    return i % 2 ? 1000 : (size_t)2 * MIB;
}

static void memops(unsigned count) {
    CUdeviceptr *block = list_of(count, sizeof *block);
    unsigned off = 0, on = 0, others = 0, again = 0;
    begin();
    for (unsigned i = 0; i < count; i++)
        block[i] = take(bytes_of(i));
    int before = memops_of(block[0]);
    for (unsigned i = 0; i < count; i++) {
        int value = i % 3 == 1;
        if (i % 3 != 2)
            CHECK(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block[i]));
    }
    for (unsigned i = 0; i < count; i++) {
        int value = memops_of(block[i] + bytes_of(i) / 2);
        off += i % 3 == 0 && value == 0;
        on += i % 3 == 1 && value == 1;
        others += i % 3 == 2 && value == before;
    }
    line("mem_table_bounds: memops: %u on, %u off, %u never set, of %u", on, off, others, count);
    for (unsigned i = 0; i < count; i++)
        CHECK(cuMemFree(block[i]));
    for (unsigned i = 0; i < count; i++)
        again += memops_of(block[i] = take(bytes_of(i))) == before;
    line("mem_table_bounds: memops: %u as at first, of new blocks", again);
    free(block);
}

/* ---- streams and captures ---- */

/* Frees blocks in their streams behind late work. The work must not write to later blocks. */
static void streams(unsigned count) {
    CUstream *stream = list_of(count, sizeof *stream), other;
    CUdeviceptr *block = list_of((size_t)count * FREES, sizeof *block);
    struct kernels kernels;
    uint32_t *bad;
    begin();
    kernels_load(&kernels);
    CHECK(cuMemAllocHost((void **)&bad, 4));
    *bad = 0;
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < count; i++)
        CHECK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    for (unsigned n = 0; n < count * FREES; n++) {
        CUdeviceptr p = take(64 * KIB);
        CHECK(launch_sleep(&kernels, stream[n % count], 1000));
        CHECK(launch_fill(&kernels, stream[n % count], p, 1, 16 * KIB));
        CHECK(cuMemFreeAsync(p, stream[n % count]));
    }
    for (unsigned n = 0; n < count * FREES; n++) {
        block[n] = take(64 * KIB);
        CHECK(launch_fill(&kernels, other, block[n], 2, 16 * KIB));
    }
    CHECK(cuCtxSynchronize());
    for (unsigned n = 0; n < count * FREES; n++)
        CHECK(launch_check(&kernels, other, block[n], 2, 16 * KIB, (CUdeviceptr)(uintptr_t)bad));
    CHECK(cuCtxSynchronize());
    line("mem_table_bounds: streams: %u wrong", *bad);
    free(stream);
    free(block);
}

static void captures(unsigned count) {
    CUstream *stream = list_of(count, sizeof *stream);
    CUgraph graph;
    CUdeviceptr p, q;
    unsigned begun = 0, ended = 0;
    begin();
    p = take(64 * KIB);
    for (unsigned i = 0; i < count; i++)
        CHECK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < count; i++)
        begun += cuStreamBeginCapture(stream[i], CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS;
    CODES("mem_table_bounds: captures: alloc, free, again", cuMemAlloc(&q, 64 * KIB), cuMemFree(q),
          cuMemFree(q));
    for (unsigned i = 0; i < count; i++)
        ended += cuStreamEndCapture(stream[i], &graph) == CUDA_SUCCESS;
    line("mem_table_bounds: captures: %u begun, %u ended", begun, ended);
    CODES("mem_table_bounds: captures: afterwards", cuMemFree(p), cuMemAlloc(&q, 30 * MIB),
          cuMemFree(q));
    free(stream);
}

/* ---- pinned memory ---- */

/* Frees all blocks before the next requests. */
static void pinned(unsigned count) {
    uint32_t **block = list_of(count, sizeof *block);
    unsigned taken = 0, freed = 0, again = 0;
    begin();
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < count; i++) {
            taken += cuMemAllocHost((void **)&block[i], 4096) == CUDA_SUCCESS;
            *block[i] = i;
        }
        for (unsigned i = 0; i < count; i++)
            freed += *block[i] == i && cuMemFreeHost(block[i]) == CUDA_SUCCESS;
        again += cuMemFreeHost(block[0]) == CUDA_SUCCESS;
    }
    line("mem_table_bounds: pinned: %u taken, %u freed, %u twice", taken, freed, again);
    free(block);
}

/* ---- devices ---- */

/* The last device exceeds the library's tables, so its memory is the driver's. */
static void devices(void) {
    CUdeviceptr p, q, r = 0;
    CUcontext first = begin(), last;
    uint32_t word = 0;
    int count;
    CHECK(cuDeviceGetCount(&count));
    p = take(4 * MIB);
    CHECK(cuDevicePrimaryCtxRetain(&last, count - 1));
    CHECK(cuCtxSetCurrent(last));
    q = take(4 * MIB);
    CODES("mem_table_bounds: devices: peer access, again", cuCtxEnablePeerAccess(first, 0),
          cuCtxEnablePeerAccess(first, 0));
    CODES("mem_table_bounds: devices: fill, copy, to host", cuMemsetD32(p, 7, MIB),
          cuMemcpyDtoD(q, p, 4 * MIB), cuMemcpyDtoH(&word, q + 4, 4), (int)word);
    CODES("mem_table_bounds: devices: free inside, free, again", cuMemFree(q + 512), cuMemFree(q),
          cuMemFree(q));
    CHECK(cuCtxSetCurrent(first));
    CODES("mem_table_bounds: devices: from the first: free, alloc, free", cuMemFree(p),
          cuMemAlloc(&r, 30 * MIB), cuMemFree(r));
    CODES("mem_table_bounds: devices: release", cuDevicePrimaryCtxRelease(count - 1));
}

/* ---- a driver that does not name the current context ---- */

static void no_current(void) {
    CUcontext context = begin();
    CUdeviceptr p[7], q = 0;
    CUstream stream, captured;
    CUgraph graph;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&captured, CU_STREAM_DEFAULT));
    for (unsigned i = 0; i < 7; i++)
        p[i] = take(100000);
    CHECK(cuCtxSetCurrent(context)); /* from here on the library knows nothing of this thread */
    sim_fail("cuCtxGetCurrent", 0, CUDA_ERROR_UNKNOWN, 1000);
    CODES("mem_table_bounds: no current: frees in order", cuMemFreeAsync(p[0], stream),
          cuMemFreeAsync(p[1], CU_STREAM_LEGACY), cuMemFreeAsync(p[2], CU_STREAM_PER_THREAD),
          cuMemFreeAsync(p[3], NULL), cuMemFreeAsync(p[3], NULL));
    CODES("mem_table_bounds: no current: free, alloc, free", cuMemFree(p[4]),
          cuMemAlloc(&q, 3 * MIB), cuMemFree(q));
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CODES("mem_table_bounds: no current: free during a capture, its end",
          cuMemFreeAsync(p[6], stream), cuStreamEndCapture(captured, &graph));
    CHECK(cuCtxSetCurrent(NULL));
    CODES("mem_table_bounds: no current: without one", cuMemAlloc(&q, 3 * MIB),
          cuMemFreeAsync(p[5], NULL));
    sim_fail("cuCtxGetCurrent", 0, CUDA_SUCCESS, 0);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    unsigned count = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    if (strcmp(name, "contexts") == 0)
        contexts(count);
    else if (strcmp(name, "memops") == 0)
        memops(count);
    else if (strcmp(name, "streams") == 0)
        streams(count);
    else if (strcmp(name, "captures") == 0)
        captures(count);
    else if (strcmp(name, "pinned") == 0)
        pinned(count);
    else if (strcmp(name, "devices") == 0)
        devices();
    else if (strcmp(name, "no_current") == 0)
        no_current();
    else
        return 2;
    return 0;
}
