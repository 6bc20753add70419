/* Prints answers of synchronous copies of memory whose context is not the current one. */
#include "diff.h"
#include "green.h"

static CUdevice device;

/* A context whose null stream runs a kernel and then fills a block. Another context is current
 * meanwhile. */
static struct {
    CUcontext here, there;
    struct kernels kernels; /* of the other context */
    CUdeviceptr mine, small, large;
} now;

static void start(void) {
    CHECK(cuCtxCreate_v2(&now.here, 0, device));
    now.mine = take(3 * MIB);
    CHECK(cuCtxCreate_v2(&now.there, 0, device));
    kernels_load(&now.kernels);
    now.small = take(4096);
    now.large = take(3 * MIB);
}

static void stop(void) {
    CHECK(cuCtxSetCurrent(now.here));
    cuCtxDestroy(now.there);
    CHECK(cuCtxDestroy(now.here));
    CHECK(cuCtxSetCurrent(NULL));
}

static CUdeviceptr work(CUdeviceptr p) {
    CHECK(cuCtxSetCurrent(now.there));
    CHECK(cuMemsetD32(p, 0x11, 1024));
    CHECK(cuCtxSynchronize());
    CHECK(launch_sleep(&now.kernels, CU_STREAM_LEGACY, 30000));
    CHECK(launch_fill(&now.kernels, CU_STREAM_LEGACY, p, 0x22, 1024));
    CHECK(cuCtxSetCurrent(now.here));
    return p;
}

/* Prints the bytes after all work has completed. */
static const char *left(CUdeviceptr p) {
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(now.there));
    CHECK(cuCtxSynchronize());
    const char *text = ends(p, 4096);
    CHECK(cuCtxSetCurrent(now.here));
    return text;
}

static CUresult copy_rows(CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = from,
                          .srcPitch = 512,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = to,
                          .dstPitch = 512,
                          .WidthInBytes = 512,
                          .Height = 8};
    return cuMemcpy2D(&rows);
}

static CUresult copy_slices(CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY3D slices = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                            .srcDevice = from,
                            .srcPitch = 512,
                            .srcHeight = 4,
                            .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                            .dstDevice = to,
                            .dstPitch = 512,
                            .dstHeight = 4,
                            .WidthInBytes = 512,
                            .Height = 4,
                            .Depth = 2};
    return cuMemcpy3D(&slices);
}

static CUresult copy_linear(CUdeviceptr to, CUdeviceptr from) {
    return cuMemcpyDtoD(to, from, 4096);
}

static CUresult copy_any(CUdeviceptr to, CUdeviceptr from) {
    return cuMemcpy(to, from, 4096);
}

/* Synchronous copies of a block wait for the null stream of the block's context to fill it. */
static void copies(void) {
    static CUresult (*const ways[])(CUdeviceptr, CUdeviceptr) = {copy_linear, copy_any, copy_rows,
                                                                 copy_slices};
    static uint32_t words[1024];
    start();
    CUdeviceptr theirs[2] = {now.small, now.large}, mine = now.mine;
    for (unsigned i = 0; i < 2; i++) {
        CUdeviceptr p = work(theirs[i]);
        line("across: %u: to the host: %s", i, ends(p, 4096));
        p = work(p);
        memset(words, 0x33, sizeof words);
        CUresult r = cuMemcpyHtoD(p, words, sizeof words);
        line("across: %u: from the host: %d, then %s", i, r, left(p));
        for (unsigned how = 0; how < 4; how++) {
            CHECK(cuMemsetD32(mine, 0x44, 1024));
            p = work(p);
            r = ways[how](mine, p);
            line("across: %u: from theirs by %u: %d, then %s", i, how, r, ends(mine, 4096));
            CHECK(cuMemsetD32(mine, 0x55, 1024));
            p = work(p);
            r = ways[how](p, mine);
            line("across: %u: to theirs by %u: %d, then %s", i, how, r, left(p));
        }
    }
    work(now.small);
    CUresult r = cuMemcpyDtoD(now.large, now.small, 4096);
    line("across: from theirs to theirs: %d, then %s", r, left(now.large));
    stop();
}

/* A wait for the other context invalidates none of its captures, and reports none of its faults. */
static void captures_and_faults(void) {
    CUstream streams[2];
    CUgraph graph;
    start();
    CHECK(cuCtxSetCurrent(now.there));
    CHECK(cuStreamCreate(&streams[0], CU_STREAM_DEFAULT));
    CHECK(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < 2; i++) {
        for (int mode = 0; mode < 3; mode++) {
            CUdeviceptr p = work(now.small);
            CHECK(cuStreamBeginCapture(streams[i], (CUstreamCaptureMode)mode));
            const char *copied = ends(p, 4096);
            CODES("across: a capture: goes on, ends",
                  launch_fill(&now.kernels, streams[i], p, 1, 10),
                  cuStreamEndCapture(streams[i], &graph), cuGraphDestroy(graph));
            if (i == 1) /* a stream that does not synchronise with the null stream */
                line("across: a capture: %s", copied);
        }
    }
    CHECK(cuCtxSetCurrent(now.there));
    CHECK(launch(now.kernels.fault, CU_STREAM_LEGACY, 1, NULL));
    CHECK(cuCtxSetCurrent(now.here));
    line("across: a fault there: %s", ends(now.small, 4096));
    CODES("across: a fault there: here", cuCtxSynchronize(), cuMemFree(now.mine));
    stop();
}

/* A copy with a view of a green context does not wait for the primary context. */
static void view(void) {
    struct green g;
    struct kernels kernels;
    CUstream side;
    CUcontext popped;
    CHECK(cuDevicePrimaryCtxRetain(&now.there, device));
    CHECK(cuCtxCreate_v2(&now.here, 0, device));
    CHECK(cuCtxSetCurrent(now.there));
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    CUdeviceptr p = take(4096), flag = take(4);
    CHECK(cuMemsetD32(p, 0x11, 1024));
    CHECK(cuMemsetD32(flag, 0, 1));
    CHECK(cuCtxSynchronize());
    if (green_begin(&g, device) && green_view(&g) == CUDA_SUCCESS) {
        CHECK(launch_spin(&kernels, CU_STREAM_LEGACY, flag, 1));
        CHECK(cuCtxPushCurrent(g.view));
        line("across: a view: %s", ends(p, 4096));
        CHECK(cuCtxPopCurrent(&popped));
        CHECK(launch_set(&kernels, side, flag, 1));
        CODES("across: a view: waited", cuCtxSynchronize(), green_end(&g));
    }
    CHECK(cuDevicePrimaryCtxRelease(device));
    CHECK(cuCtxSetCurrent(now.here));
    CHECK(cuCtxDestroy(now.here));
    CHECK(cuCtxSetCurrent(NULL));
}

/* Leaves free blocks in the current context. */
static void free_some(CUdeviceptr p[8]) {
    for (unsigned i = 0; i < 8; i++)
        p[i] = take(4096);
    for (unsigned i = 0; i < 8; i++)
        CHECK(cuMemFree(p[i]));
    CHECK(cuCtxSynchronize());
}

/* A fault of a context that another one reports, by a wait for a stream. */
static void fault_seen_from_here(void) {
    CUstream side;
    CUdeviceptr p[8], other;
    start();
    CHECK(cuCtxSetCurrent(now.here));
    free_some(p);
    CHECK(cuCtxSetCurrent(now.there));
    CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    other = take(4096);
    free_some(p);
    CHECK(launch(now.kernels.fault, side, 1, NULL));
    CHECK(cuCtxSetCurrent(now.here));
    CODES("across: a fault seen from here: wait, here", cuStreamSynchronize(side),
          cuMemAlloc(p, 4096), cuMemFree(*p));
    CHECK(cuCtxSetCurrent(now.there));
    CODES("across: a fault seen from here: there", cuMemAlloc(p, 4096), cuMemFree(other),
          cuMemFree(now.small));
    stop();
}

/* With a view current, frees a block in a stream of the primary context. The green context ends
 * before the stream reaches the free: nobody gets the block earlier. */
static void free_from_a_view(size_t bytes) {
    struct green g;
    struct kernels kernels;
    CUstream side, other;
    CUdeviceptr next[4], p, flag;
    uint32_t wrong = 77;
    CHECK(cuDevicePrimaryCtxRetain(&now.there, device));
    CHECK(cuCtxSetCurrent(now.there));
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    flag = take(8);
    CHECK(cuMemsetD32(flag, 0, 2));
    if (green_begin(&g, device) && green_view(&g) == CUDA_SUCCESS) {
        p = take(bytes);
        CHECK(launch_spin(&kernels, side, flag, 1));
        CHECK(launch_fill(&kernels, side, p, 0x66, bytes / 4));
        CHECK(cuCtxSetCurrent(g.view));
        line("across: a free from a view: %d", cuMemFreeAsync(p, side));
        CHECK(cuCtxSetCurrent(now.there));
        line("across: a free from a view: end %d", green_end(&g));
        for (unsigned i = 0; i < 4; i++) {
            next[i] = take(bytes);
            CHECK(cuMemsetD32Async(next[i], 0x77, bytes / 4, other));
        }
        CHECK(cuStreamSynchronize(other));
        CHECK(launch_set(&kernels, other, flag, 1));
        CHECK(cuStreamSynchronize(side));
        for (unsigned i = 0; i < 4; i++)
            CHECK(launch_check(&kernels, other, next[i], 0x77, bytes / 4, flag + 4));
        CHECK(cuStreamSynchronize(other));
        CHECK(cuMemcpyDtoH(&wrong, flag + 4, 4));
        line("across: a free from a view: %u wrong words", wrong);
    }
    CHECK(cuDevicePrimaryCtxReset(device));
    CHECK(cuCtxSetCurrent(NULL));
}

static void frees_from_a_view(void) {
    free_from_a_view((size_t)64 << 10);
    free_from_a_view(8 * MIB);
}

/* A fault is the process's: with an argument, main() runs only the part that begins with one. */
int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"copies", copies},
                 {"frees from a view", frees_from_a_view},
                 {"a view", view},
                 {"captures and faults", captures_and_faults}};
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    if (argc > 1 && strcmp(argv[1], "fault") == 0) {
        fault_seen_from_here();
        return 0;
    }
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (section(parts[i].name))
            parts[i].run();
    return 0;
}
